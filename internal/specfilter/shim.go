package specfilter

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/rootlessnode/rootlessnode/internal/atomicfile"
)

// Config is the configuration of the shim. It is read from a file, because containerd determines the command line. The node role writes it to
// layout.InsideOCIShim before containerd starts.
type Config struct {
	// Runc is the absolute path of the real runc.
	Runc string `json:"runc"`
	// Runtimes are the absolute paths of other programs with runc's command line, by the name with which the shim is executed.
	Runtimes map[string]string `json:"runtimes,omitempty"`
	// Drop are the controllers whose limits are removed; see Missing.
	Drop []string `json:"drop"`
	// Cgroup moves the cgroups of containers.
	Cgroup Move `json:"cgroup,omitzero"`
}

// Render returns the content of the configuration file.
func (c Config) Render() []byte {
	b, _ := json.Marshal(c) // encoding strings cannot fail
	return append(b, '\n')
}

// ParseConfig parses the output of Render. Unknown fields are an error. Pure.
func ParseConfig(text []byte) (Config, error) {
	var c Config
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&c); err != nil {
		return Config{}, fmt.Errorf("parse shim configuration: %w", err)
	}
	if !filepath.IsAbs(c.Runc) {
		return Config{}, fmt.Errorf("shim configuration: runc: %q is not an absolute path", c.Runc)
	}
	for name, path := range c.Runtimes {
		if !filepath.IsAbs(path) {
			return Config{}, fmt.Errorf("shim configuration: runtimes: %s: %q is not an absolute path", name, path)
		}
	}
	for _, d := range c.Drop {
		if d == "" || d == "cgroup" || strings.ContainsAny(d, "./ ") {
			return Config{}, fmt.Errorf("shim configuration: drop: %q is not a controller name", d)
		}
	}
	if err := c.Cgroup.check(); err != nil {
		return Config{}, fmt.Errorf("shim configuration: cgroup: %w", err)
	}
	return c, nil
}

// Exec runs the shim: it filters the specification or the limits to which args refer, and then executes the real runc, or the program to which
// the name of the shim refers. args begin with the path of the shim. Exec returns only if it fails. It also writes the error to runc's log, where containerd looks for it.
//
// For `runc update`, it filters the limits in the arguments or the input. If no limit remains, it still executes runc with an empty set, which
// changes nothing but reports an unknown or stopped container.
func Exec(configPath string, args []string) error {
	c := parseCall(args[1:])
	err := c.exec(configPath, filepath.Base(args[0]), args[1:])
	c.logError(err)
	return err
}

func (c *call) exec(configPath, name string, args []string) error {
	text, err := os.ReadFile(configPath)
	if err != nil {
		return err
	}
	cfg, err := ParseConfig(text)
	if err != nil {
		return err
	}
	program, foreign := cfg.Runtimes[name]
	if !foreign {
		program = cfg.Runc
	}
	args, stdin, err := c.prepare(args, cfg, foreign, filepath.Dir(configPath), os.Stdin)
	if err != nil {
		return err
	}
	if stdin != nil {
		if err := syscall.Dup3(int(stdin.Fd()), 0, 0); err != nil {
			return fmt.Errorf("replace standard input: %w", err)
		}
	}
	err = syscall.Exec(program, append([]string{program}, args...), os.Environ())
	return fmt.Errorf("execute %s: %w", program, err)
}

// prepare filters the specification or the limits of the call. It returns the arguments for runc and its standard input, or nil if the input
// does not change.
func (c *call) prepare(args []string, cfg Config, foreign bool, scratch string, stdin io.Reader) ([]string, *os.File, error) {
	drop := cfg.Drop
	switch c.command {
	case "create", "run", "restore":
		return args, nil, filterBundle(c.bundle, cfg, foreign)
	case "update":
		if len(drop) == 0 {
			return args, nil, nil
		}
		if c.resources == "" {
			return c.withoutFlags(args, drop), nil, nil
		}
		f, err := filteredInput(c.resources, drop, scratch, stdin)
		if err != nil {
			return nil, nil, fmt.Errorf("filter resources of update: %w", err)
		}
		return c.resourcesFromStdin(args), f, nil
	}
	return args, nil, nil
}

// filterBundle rewrites the bundle's config.json atomically and preserves its mode and owner. It does not write the file if nothing changes.
func filterBundle(bundle string, cfg Config, foreign bool) error {
	path := filepath.Join(bundle, "config.json")
	before, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil // runc reports the missing file
	}
	if err != nil {
		return err
	}
	after, dropped, err := Spec(before, cfg.Drop)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	after, moved, err := Cgroup(after, cfg.Cgroup)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if foreign {
		if after, err = oldVersion(after); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	} else if len(dropped) == 0 && !moved {
		return nil
	}
	return atomicfile.Options{Keep: true}.Write(path, after, 0o600)
}

// oldVersion returns config with the version 1.0.2 of the OCI specification. crun before 1.8.4, such as that of Debian 12, rejects
// every version that does not begin with 1.0, although it ignores unknown fields.
func oldVersion(config []byte) ([]byte, error) {
	out, err := edit(config, func(m member) (member, bool, error) {
		if m.is("ociVersion") {
			m.value = json.RawMessage(`"1.0.2"`)
		}
		return m, true, nil
	})
	if err != nil {
		return nil, fmt.Errorf("parse OCI specification: %w", err)
	}
	return out, nil
}

// maxResources is the maximum size in bytes of the limits for update, which usually have a few hundred bytes.
const maxResources = 1 << 20

// filteredInput returns an unlinked file with the filtered limits from the file from, or from stdin if from is "-". The file offset is 0.
func filteredInput(from string, drop []string, scratch string, stdin io.Reader) (_ *os.File, err error) {
	if from != "-" {
		f, err := os.Open(from)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }()
		stdin = f
	}
	text, err := io.ReadAll(io.LimitReader(stdin, maxResources+1))
	if err != nil {
		return nil, err
	}
	if len(text) > maxResources {
		return nil, fmt.Errorf("larger than %d bytes", maxResources)
	}
	text, _, err = Resources(text, drop)
	if err != nil {
		return nil, err
	}
	f, err := os.CreateTemp(scratch, ".update-*")
	if err != nil {
		return nil, err
	}
	_, werr := f.Write(text)
	_, serr := f.Seek(0, io.SeekStart)
	if err := errors.Join(os.Remove(f.Name()), werr, serr); err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// logError appends err to runc's log in the format that containerd's shim reads.
func (c *call) logError(err error) {
	if err == nil || c.log == "" {
		return
	}
	f, oerr := os.OpenFile(c.log, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	if oerr != nil {
		return // the error is also on standard error
	}
	defer func() { _ = f.Close() }()
	msg := "rootlessnode-runc: " + err.Error()
	if !c.jsonLog {
		_, _ = fmt.Fprintf(f, "level=error msg=%q\n", msg)
		return
	}
	_ = json.NewEncoder(f).Encode(struct {
		Level string    `json:"level"`
		Msg   string    `json:"msg"`
		Time  time.Time `json:"time"`
	}{"error", msg, time.Now()})
}
