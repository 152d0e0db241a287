package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

// Resolve returns dir, an absolute path, without symbolic links. The part of it that does not exist yet stays as it is.
//
// Errors: of class ErrConfig for a link that leads nowhere, or a path that cannot be looked up.
func Resolve(dir string) (string, error) {
	existing, rest := filepath.Clean(dir), ""
	for {
		real, err := filepath.EvalSymlinks(existing)
		if err == nil {
			return filepath.Join(real, rest), nil
		}
		if _, lerr := os.Lstat(existing); lerr == nil && errors.Is(err, fs.ErrNotExist) {
			return "", errdefs.Class(errdefs.ErrConfig, fmt.Errorf("dataDir: %s: the symbolic link %s leads to a path that does not exist", dir, existing))
		}
		if !errors.Is(err, fs.ErrNotExist) || existing == "/" {
			return "", errdefs.Class(errdefs.ErrConfig, fmt.Errorf("dataDir: %s: %w", dir, err))
		}
		existing, rest = filepath.Dir(existing), filepath.Join(filepath.Base(existing), rest)
	}
}

// Place is a data dir that a node wants to use, and the directories of the host that it must keep away from.
type Place struct {
	// Name is the node's, Dir the data dir as Resolve returns it, UID the account's.
	Name string
	Dir  string
	UID  int
	// Default is the node's default data dir. Data that is there without a record is the node's: earlier versions wrote none.
	Default string
	// Homes are the account's home directories by passwd and by HOME. RuntimeDir is XDG_RUNTIME_DIR; ComponentsDir and Exe are
	// the node's programs. Empty ones are not looked at.
	Homes         []string
	RuntimeDir    string
	ComponentsDir string
	Exe           string
	Registry      Registry
}

// systemDirs hold files of the host. A data dir may be below most of them, and must not be one of them.
func systemDirs() []string {
	return []string{
		"/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/media", "/mnt", "/opt", "/proc", "/root", "/run", "/sbin", "/srv",
		"/sys", "/tmp", "/usr", "/usr/local", "/var", "/var/cache", "/var/lib", "/var/log", "/var/tmp", "/dev/shm", "/run/user",
	}
}

// Check refuses a directory that holds, or may hold, other things than the node's data, because the node's data is removed with
// its directory.
//
// Errors: one of class ErrConfig, which tells all faults of the place, or nil. Runs in: parent.
func (p Place) Check() error {
	err := p.where()
	if err == nil {
		err = p.contents()
	}
	return errdefs.Class(errdefs.ErrConfig, err)
}

// where looks at the place only.
func (p Place) where() error {
	var texts []string
	add := func(format string, args ...any) {
		if text := fmt.Sprintf(format, args...); !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	if slices.Contains(systemDirs(), p.Dir) {
		add("is a directory of the host")
	}
	for _, kernel := range []string{"/proc", "/sys"} {
		if within(kernel, p.Dir) && p.Dir != kernel {
			add("is inside %s, which belongs to the kernel", kernel)
		}
	}
	for _, home := range p.Homes {
		switch home = real(home); {
		case home == "" || home == "/":
		case home == p.Dir:
			add("is the home directory of the account")
		case within(p.Dir, home):
			add("contains the home directory of the account, %s", home)
		}
	}
	for _, other := range []struct{ path, what string }{
		{p.RuntimeDir, "the runtime directory"}, {p.ComponentsDir, "the components directory"}, {p.Exe, "the executable"},
	} {
		switch path := real(other.path); {
		case path == "":
		case path == p.Dir:
			add("is %s", other.what)
		case within(p.Dir, path):
			add("contains %s, %s", other.what, path)
		case within(path, p.Dir):
			add("is inside %s, %s", other.what, path)
		}
	}
	for _, text := range p.neighbours() {
		add("%s", text)
	}
	if len(texts) == 0 {
		return nil
	}
	return p.fault("%s", strings.Join(texts, "; "))
}

// neighbours finds data dirs of other nodes above and below this one: by the registry and, above, by their records.
func (p Place) neighbours() []string {
	var texts []string
	if nodes := filepath.Dir(p.Default); p.Default != "" && p.Dir != p.Default && within(nodes, p.Dir) {
		texts = append(texts, fmt.Sprintf("is inside %s, which holds the default data dirs of nodes", nodes))
	}
	inside := map[string]bool{}
	for dir := filepath.Dir(p.Dir); ; dir = filepath.Dir(dir) {
		if r, err := ReadRecord(layout.NewData(dir), p.UID); err == nil {
			texts = append(texts, fmt.Sprintf("is inside the data dir of node %q, %s", r.Name, dir))
			inside[dir] = true
		}
		if dir == "/" {
			break
		}
	}
	for _, e := range p.Registry.all() {
		for _, dir := range e.DataDirs {
			if _, err := os.Stat(dir); err != nil || inside[dir] {
				continue
			}
			switch {
			case dir == p.Dir:
				// With a record, that says whose it is; without any data the entry is out of date.
				_, err := os.Lstat(layout.NewData(dir).Record())
				if f, _ := look(layout.NewData(dir)); e.Name != p.Name && err != nil && f.characteristic {
					texts = append(texts, fmt.Sprintf("is the data dir of node %q", e.Name))
				}
			case within(dir, p.Dir):
				texts = append(texts, fmt.Sprintf("is inside the data dir of node %q, %s", e.Name, dir))
			case within(p.Dir, dir):
				texts = append(texts, fmt.Sprintf("contains the data dir of node %q, %s", e.Name, dir))
			}
		}
	}
	return texts
}

// contents looks at what is there already.
func (p Place) contents() error {
	d := layout.NewData(p.Dir)
	r, err := ReadRecord(d, p.UID)
	switch {
	case err == nil:
		if err := r.of(d, p.Name); err != nil {
			return fmt.Errorf("dataDir: %w", err)
		}
		return nil
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("dataDir: %w", err)
	}
	if p.Dir == p.Default {
		return nil
	}
	f, err := look(d)
	if err != nil || len(f.foreign) == 0 && (len(f.known) == 0 || f.characteristic) {
		return nil // what cannot be read cannot be written either: preflight reports it
	}
	if len(f.foreign) > 0 && f.characteristic {
		return errdefs.WithHintf(fmt.Errorf("dataDir: %s: the directory has data of a node without a record, and other files: %s", p.Dir, some(f.foreign)),
			"# if this is the data of node %q, made by an earlier version, move the other files to another directory and start it again;\n"+
				"# if not, take a directory of its own, which is empty or does not exist yet: --data-dir %s", p.Name, hostinfo.Quote(p.suggestion()))
	}
	if len(f.foreign) == 0 {
		f.foreign = f.known // a directory named log, for example, is not the mark of a node
	}
	return p.fault("the directory is not empty and is not the data dir of a node: it has %s", some(f.foreign))
}

func (p Place) fault(format string, args ...any) error {
	return errdefs.WithHintf(fmt.Errorf("dataDir: %s: %w", p.Dir, fmt.Errorf(format, args...)),
		"# take a directory of its own, which is empty or does not exist yet, for example:\nrootlessnode --name %s up --data-dir %s",
		hostinfo.Quote(p.Name), hostinfo.Quote(p.suggestion()))
}

// suggestion is a directory that would do.
func (p Place) suggestion() string {
	if len(p.Homes) > 0 && real(p.Homes[0]) != "" {
		return filepath.Join(real(p.Homes[0]), "rootlessnode-data", p.Name)
	}
	return p.Default
}

// some names at most three of names.
func some(names []string) string {
	const most = 3
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}

// real is path without links; empty for one that does not exist.
func real(path string) string {
	if path == "" {
		return ""
	}
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return ""
	}
	return path
}

// within reports whether path is dir or below it. Both are clean and absolute.
func within(dir, path string) bool {
	return dir == path || dir == "/" || strings.HasPrefix(path, dir+"/")
}

// found are the names in a directory.
type found struct {
	// known are names that layout.Data has, with temporary files of them; foreign are all others.
	known, foreign []string
	// characteristic reports whether names are among them that hardly any other program uses.
	characteristic bool
}

// look sorts what is in a data dir.
func look(d layout.Data) (found, error) {
	entries, err := os.ReadDir(d.Dir)
	if err != nil {
		return found{}, err
	}
	var f found
	for _, e := range entries {
		f.add(e.Name(), d)
	}
	return f, nil
}

func (f *found) add(name string, d layout.Data) {
	switch of := entryOf(name, d); of {
	case "":
		if name != lostFound {
			f.foreign = append(f.foreign, name)
		}
	default:
		f.known = append(f.known, name)
		f.characteristic = f.characteristic || !slices.Contains(commonNames(), of)
	}
}

// lostFound is in the first directory of a file system, and belongs to it.
const lostFound = "lost+found"

// commonNames are entries of layout.Data that other programs use too.
func commonNames() []string {
	return []string{"log", "kubeconfig", "etcd", "containers", "containerd", "cni", "images.json", "ports.json", "inside"}
}

// entryOf returns the entry of layout.Data that name is, or whose temporary file name is; empty for a foreign name.
func entryOf(name string, d layout.Data) string {
	entries := d.Entries()
	if slices.Contains(entries, name) {
		return name
	}
	// Files are written beside their places first: .NAME.123, .tmp-NAME-123, .STEM-123.
	stem, ok := strings.CutPrefix(name, ".")
	if !ok {
		return ""
	}
	stem = strings.TrimPrefix(stem, "tmp-")
	end := strings.TrimRight(stem, "0123456789")
	if end == stem || end == "" || !strings.ContainsAny(end[len(end)-1:], ".-") {
		return ""
	}
	stem = end[:len(end)-1]
	for _, e := range entries {
		if stem == e || stem == strings.TrimSuffix(e, ".json") {
			return e
		}
	}
	return ""
}

// Unmarked refuses to remove what a data dir without a record holds, unless it is certain that it is the data of node name.
// certain says so. Data of earlier versions has no record.
func Unmarked(d layout.Data, name string, certain bool) error {
	f, err := look(d)
	if err != nil {
		return fmt.Errorf("read data dir %s: %w", d.Dir, err)
	}
	if certain || len(f.known) == 0 || len(f.foreign) == 0 && f.characteristic {
		return nil
	}
	err = fmt.Errorf("remove data dir %s: it has no record of node %q and holds other files (%s): nothing was removed",
		d.Dir, name, some(slices.Concat(f.foreign, f.known)))
	paths := make([]string, len(f.known))
	for i, n := range f.known {
		paths[i] = filepath.Join(d.Dir, n)
	}
	return errdefs.WithHint(errdefs.Class(errdefs.ErrConfig, err),
		"# these may be the node's; look at them, and remove them as root if they are:\n"+RootRemoves(paths...))
}
