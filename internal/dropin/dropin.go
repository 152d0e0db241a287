// Package dropin writes the systemd units that run the kubelet and the container runtime in a mount namespace of
// pkg/mountns: one unit that creates the namespace, and for each service a drop-in that prefixes its command with
// "rootlessnode mountns exec".
//
// The drop-in copies the command of the unit and all its drop-ins literally, so that systemd interprets quotes, specifiers
// and variables as before. Other settings of the service do not change. When a package changes the service's command, the
// drop-in has to be written again; Stale reports such drop-ins.
//
// Runs in: the host's mount namespace, as root. It runs systemctl, writes below one directory, and neither starts nor
// stops units.
package dropin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/rootlessnode/rootlessnode/internal/atomicfile"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/proc"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// DefaultDir is the directory of the administrator's units (systemd.unit(5)).
const DefaultDir = "/etc/systemd/system"

// FileName is the name of each drop-in. It sorts late, because the last ExecStart takes effect.
const FileName = "zz-rootlessnode-mountns.conf"

// Options configures the units. Name and Exe are required.
type Options struct {
	// Name is the mount namespace. CreateArgs are further arguments of "mountns create".
	Name       string
	CreateArgs []string
	// Exe is the absolute path of the rootlessnode program.
	Exe string
	// Dir is the directory to write units to. Empty: DefaultDir.
	Dir string
	// RootOnly returns an error if accounts other than root can replace a file. It is applied to Exe, because root executes
	// that. nil: hostinfo.RootOnly.
	RootOnly func(path string) error
	// Systemctl runs systemctl with arguments and returns its output. nil: the program in PATH.
	Systemctl func(ctx context.Context, args ...string) ([]byte, error)
}

// File is a file to write.
type File struct {
	Path string `json:"path"`
	Text string `json:"text"`
}

// Plan contains the files to write, and notes for the user.
type Plan struct {
	Files []File `json:"files"`
	// Notes lists settings of the services that have no effect in a shared mount namespace.
	Notes []string `json:"notes,omitempty"`

	o Options
}

// UnitName returns the name of the unit that creates the namespace.
func UnitName(namespace string) string { return "rootlessnode-mountns-" + namespace + ".service" }

func (o Options) withDefaults() Options {
	if o.Dir == "" {
		o.Dir = DefaultDir
	}
	if o.Systemctl == nil {
		o.Systemctl = systemctl
	}
	if o.RootOnly == nil {
		o.RootOnly = hostinfo.RootOnly
	}
	return o
}

func systemctl(ctx context.Context, args ...string) ([]byte, error) {
	program := hostinfo.RootProgram("systemctl")
	if program == "" {
		program = "systemctl" // so that the error contains the name
	}
	cmd := exec.CommandContext(ctx, program, append([]string{"--no-pager"}, args...)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = proc.Failure(err, exit.Stderr)
	}
	if err != nil {
		err = errdefs.Preflight("systemctl %s: %w", args[0], err)
		return nil, errdefs.WithHint(err, "drop-ins need a host booted with systemd; on other hosts, start the command in the mount namespace")
	}
	return out, nil
}

// NewPlan reads the units from systemd and returns their drop-ins. It writes nothing. It joins the errors of all units.
func NewPlan(ctx context.Context, o Options, units []string) (*Plan, error) {
	o = o.withDefaults()
	if err := o.checkExe(); err != nil {
		return nil, err
	}
	p := &Plan{o: o, Files: []File{{filepath.Join(o.Dir, UnitName(o.Name)), o.unitText()}}}
	var errs []error
	for _, name := range units {
		f, notes, err := o.plan(ctx, name)
		if err != nil {
			errs = append(errs, fmt.Errorf("drop-in for %s: %w", name, err))
			continue
		}
		if !slices.ContainsFunc(p.Files, func(have File) bool { return have.Path == f.Path }) { // skip aliases of the same unit
			p.Files, p.Notes = append(p.Files, f), append(p.Notes, notes...)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return p, nil
}

// checkExe returns an error if accounts other than root can replace the program, or its path cannot be used in a unit.
func (o Options) checkExe() error {
	if err := o.RootOnly(o.Exe); err != nil {
		return errdefs.Preflight("drop-in: %w; install below /usr/local first", err).Hint(hostinfo.InstallFirst(o.Exe)...).
			With(errdefs.Hint{{Action: errdefs.ConfigureMounts, Args: []string{o.Name, "UNIT..."}, Program: hostinfo.Installed}})
	}
	if strings.ContainsFunc(o.Exe, func(r rune) bool { return r < ' ' || r == 0x7f || r == utf8.RuneError }) {
		return errdefs.Preflight("drop-in: path %q cannot be used in a unit", o.Exe)
	}
	return nil
}

func (o Options) plan(ctx context.Context, name string) (File, []string, error) {
	u, err := o.load(ctx, name)
	if err != nil {
		return File{}, nil, err
	}
	notes, err := u.check()
	if err != nil {
		return File{}, nil, err
	}
	dir := filepath.Join(o.Dir, u.id+".d")
	text, err := o.dropInText(u, dir)
	return File{filepath.Join(dir, FileName), text}, notes, err
}

// header is the first line of every file. Files of earlier versions are recognized by it, so it must not change.
const header = "# Written by \"rootlessnode mountns drop-in\"; \"rootlessnode mountns drop-in remove\" takes it back.\n" // words:allow text of files on disk

// madeDir is in a drop-in whose directory was created for it. It must not change either.
const madeDir = "# The directory was made with it.\n"

func (o Options) unitText() string {
	args := append([]string{"mountns", "create", "--name", o.Name}, o.CreateArgs...)
	return header + `[Unit]
Description=Mount namespace ` + o.Name + ` of the kubelet and the container runtime

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=` + quoteProgram(o.Exe) + " " + strings.Join(args, " ") + "\n"
}

func (o Options) dropInText(u *unit, dir string) (string, error) {
	text := header
	own, err := os.ReadFile(filepath.Join(dir, FileName))
	if _, statErr := os.Stat(dir); os.IsNotExist(statErr) || err == nil && strings.Contains(string(own), madeDir) {
		text += madeDir
	}
	lines, err := o.execStart(u)
	if err != nil {
		return "", err
	}
	text += "[Unit]\nRequires=" + UnitName(o.Name) + "\nAfter=" + UnitName(o.Name) + "\n\n[Service]\nExecStart=\n"
	return text + strings.Join(lines, ""), nil
}

// execStart returns the lines for all commands of the unit, each with the prefix.
func (o Options) execStart(u *unit) ([]string, error) {
	var lines []string
	var errs []error
	arguments := "mountns exec --name " + o.Name
	if u.props["IgnoreSIGPIPE"] == "yes" {
		arguments += " --ignore-sigpipe"
	}
	for _, value := range merged(u.texts, "ExecStart") {
		commands, err := splitCommands(value)
		if err != nil {
			errs = append(errs, err)
		}
		for _, c := range commands {
			lines = append(lines, "ExecStart="+c.wrap(quoteProgram(o.Exe), arguments)+"\n")
		}
	}
	if len(lines) == 0 && len(errs) == 0 {
		errs = append(errs, errors.New("the unit has no ExecStart"))
	}
	return lines, errdefs.Class(errdefs.ErrConfig, errors.Join(errs...))
}

// Apply writes the files that are missing or differ, and reloads systemd if it has written any. It returns the paths of the
// written files. The services are not affected until they are restarted.
func (p *Plan) Apply(ctx context.Context) ([]string, error) {
	var written []string
	for _, f := range p.Files {
		if have, err := os.ReadFile(f.Path); err == nil && string(have) == f.Text {
			continue
		}
		if err := writeFile(f); err != nil {
			return written, errdefs.Class(errdefs.ErrPreflight, err)
		}
		written = append(written, f.Path)
	}
	if len(written) == 0 {
		return nil, nil
	}
	_, err := p.o.Systemctl(ctx, "daemon-reload")
	return written, err
}

// writeFile replaces a file atomically, because systemd may read it at any time.
func writeFile(f File) error {
	if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
		return err
	}
	return atomicfile.Options{Durable: true}.Write(f.Path, []byte(f.Text), 0o644)
}

// Remove removes the drop-ins that Apply wrote for units, or all drop-ins of the namespace if units is empty. With the last
// drop-in it also removes the unit of the namespace. It returns the removed paths. It does not change foreign files.
func Remove(ctx context.Context, o Options, units []string) ([]string, error) {
	o = o.withDefaults()
	all, err := o.dropIns()
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, name := range units {
		id, err := o.id(ctx, name)
		if err != nil {
			return nil, err
		}
		if _, ok := all[id]; !ok {
			return nil, errdefs.Config("%s has no drop-in for mount namespace %s", id, o.Name)
		}
		ids = append(ids, id)
	}
	removed, err := o.remove(all, ids)
	if len(removed) > 0 {
		_, reloadErr := o.Systemctl(ctx, "daemon-reload")
		err = errors.Join(err, reloadErr)
	}
	return removed, err
}

// remove deletes the drop-ins of ids, or all if ids is empty, and the unit of the namespace if no drop-in is left.
func (o Options) remove(all map[string]string, ids []string) (removed []string, err error) {
	left := len(all)
	for _, id := range sortedKeys(all) {
		if len(ids) > 0 && !slices.Contains(ids, id) {
			continue
		}
		path := filepath.Join(o.Dir, id+".d", FileName)
		if err := os.Remove(path); err != nil {
			return removed, errdefs.Class(errdefs.ErrPreflight, err)
		}
		removed = append(removed, path)
		if left--; strings.Contains(all[id], madeDir) {
			_ = os.Remove(filepath.Dir(path)) // fails if it contains other files
		}
	}
	path := filepath.Join(o.Dir, UnitName(o.Name))
	if text, err := os.ReadFile(path); left > 0 || err != nil || !strings.HasPrefix(string(text), header) {
		return removed, nil
	}
	if err := os.Remove(path); err != nil {
		return removed, errdefs.Class(errdefs.ErrPreflight, err)
	}
	return append(removed, path), nil
}

// dropIns returns the texts of the namespace's drop-ins that this package wrote, by unit.
func (o Options) dropIns() (map[string]string, error) {
	paths, err := filepath.Glob(filepath.Join(o.Dir, "*.d", FileName))
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, errdefs.Class(errdefs.ErrPreflight, err)
		}
		if strings.HasPrefix(string(text), header) && strings.Contains(string(text), "\nRequires="+UnitName(o.Name)+"\n") {
			all[strings.TrimSuffix(filepath.Base(filepath.Dir(path)), ".d")] = string(text)
		}
	}
	return all, nil
}

// Stale returns the units whose drop-in is outdated, each with the reason: their command has changed, or they cannot be read.
func Stale(ctx context.Context, o Options) ([]string, error) {
	o = o.withDefaults()
	all, err := o.dropIns()
	if err != nil {
		return nil, err
	}
	var stale []string
	for _, id := range sortedKeys(all) {
		f, _, err := o.plan(ctx, id)
		switch {
		case err != nil:
			stale = append(stale, fmt.Sprintf("%s: %v", id, err))
		case f.Text != all[id]:
			stale = append(stale, id+": its command has changed since the drop-in was written")
		}
	}
	return stale, nil
}

func sortedKeys(m map[string]string) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
