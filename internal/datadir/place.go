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
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// Resolve returns dir, an absolute path, with symbolic links resolved. It does not change the part of dir that does not exist.
//
// Errors: of class errdefs.ErrConfig if a symbolic link is dangling or a part of dir is not accessible.
func Resolve(dir string) (string, error) {
	existing, rest := filepath.Clean(dir), ""
	for {
		real, err := filepath.EvalSymlinks(existing)
		if err == nil {
			return filepath.Join(real, rest), nil
		}
		if _, lerr := os.Lstat(existing); lerr == nil && errors.Is(err, fs.ErrNotExist) {
			return "", errdefs.Config("dataDir: %s: the symbolic link %s points to a path that does not exist", dir, existing)
		}
		if !errors.Is(err, fs.ErrNotExist) || existing == "/" {
			return "", errdefs.Config("dataDir: %s: %w", dir, err)
		}
		existing, rest = filepath.Dir(existing), filepath.Join(filepath.Base(existing), rest)
	}
}

// Place is a data dir for a node, and the directories of the host that it must not overlap.
type Place struct {
	// Name is the name of the node, Dir the data dir as Resolve returns it, and UID the uid of the account.
	Name string
	Dir  string
	UID  int
	// Default is the node's default data dir. Data in it belongs to the node even without a record, because earlier versions wrote
	// no record.
	Default string
	// Homes are the account's home directories in passwd and in HOME. RuntimeDir is XDG_RUNTIME_DIR; ComponentsDir and Exe are
	// the node's programs. Empty paths are ignored.
	Homes         []string
	RuntimeDir    string
	ComponentsDir string
	Exe           string
	Registry      Registry
}

// systemDirs returns directories of the host that must not be data dirs. A data dir may be below most of them.
func systemDirs() []string {
	return []string{
		"/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/media", "/mnt", "/opt", "/proc", "/root", "/run", "/sbin", "/srv",
		"/sys", "/tmp", "/usr", "/usr/local", "/var", "/var/cache", "/var/lib", "/var/log", "/var/tmp", "/dev/shm", "/run/user",
	}
}

// Check returns an error if the directory contains, or may contain, other files than the node's data, because it is removed with the
// data.
//
// Errors: of class errdefs.ErrConfig with all reasons. Runs in: parent.
func (p Place) Check() error {
	err := p.checkPath()
	if err == nil {
		err = p.checkContents()
	}
	return errdefs.Class(errdefs.ErrConfig, err)
}

// runtimeDir returns the directory below which no data dir may be: RuntimeDir, or only the part of it that nodes use if RuntimeDir
// contains a home directory, as in containers where both are the same directory.
func (p Place) runtimeDir() string {
	dir := real(p.RuntimeDir)
	for _, home := range p.Homes {
		if home = real(home); dir != "" && home != "" && within(dir, home) {
			return filepath.Join(dir, "rootlessnode")
		}
	}
	return dir
}

// checkPath checks the path of the directory and not its content.
func (p Place) checkPath() error {
	var texts []string
	add := func(format string, args ...any) {
		if text := fmt.Sprintf(format, args...); !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	if slices.Contains(systemDirs(), p.Dir) {
		add("is a system directory")
	}
	for _, kernel := range []string{"/proc", "/sys"} {
		if within(kernel, p.Dir) && p.Dir != kernel {
			add("is inside %s, a kernel file system", kernel)
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
	for _, other := range []struct{ path, name string }{
		{p.runtimeDir(), "the runtime directory"}, {real(p.ComponentsDir), "the components directory"}, {real(p.Exe), "the executable"},
	} {
		switch path := other.path; {
		case path == "":
		case path == p.Dir:
			add("is %s", other.name)
		case within(p.Dir, path):
			add("contains %s, %s", other.name, path)
		case within(path, p.Dir):
			add("is inside %s, %s", other.name, path)
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

// neighbours describes data dirs of other nodes that contain p.Dir or are below it. It finds them in the registry, and those above
// also by their records.
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
				// A record names the node that owns the directory. Without data, the entry is outdated.
				_, err := os.Lstat(layout.NewData(dir).Record())
				if f, _ := list(layout.NewData(dir)); e.Name != p.Name && err != nil && f.characteristic {
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

// checkContents checks the existing content of the directory.
func (p Place) checkContents() error {
	d := layout.NewData(p.Dir)
	r, err := ReadRecord(d, p.UID)
	switch {
	case err == nil:
		if err := r.checkName(d, p.Name); err != nil {
			return fmt.Errorf("dataDir: %w", err)
		}
		return nil
	case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("dataDir: %w", err)
	}
	if p.Dir == p.Default {
		return nil
	}
	f, err := list(d)
	if err != nil || len(f.foreign) == 0 && (len(f.known) == 0 || f.characteristic) {
		return nil // the preflight reports a directory that is not accessible
	}
	if len(f.foreign) > 0 && f.characteristic {
		return errdefs.Errorf("dataDir: %s: the directory has data of a node without a record, and other files: %s", p.Dir, some(f.foreign)).
			Hintf("# if this is the data of node %q from an earlier version, move the other files to another directory and start the node again;\n"+
				"# otherwise choose a directory that is empty or does not exist, such as dataDir: %s", p.Name, hostinfo.Quote(p.suggestion()))
	}
	if len(f.foreign) == 0 {
		f.foreign = f.known // names such as log are too common to identify data of a node
	}
	return p.fault("the directory is not empty and is not the data dir of a node: it has %s", some(f.foreign))
}

func (p Place) fault(format string, args ...any) error {
	return errdefs.Errorf("dataDir: %s: %w", p.Dir, fmt.Errorf(format, args...)).
		Hint("# choose a directory that is empty or does not exist, for example:").Do(errdefs.Start, "dataDir="+p.suggestion())
}

// suggestion returns a suitable directory for a hint.
func (p Place) suggestion() string {
	if len(p.Homes) > 0 && real(p.Homes[0]) != "" {
		return filepath.Join(real(p.Homes[0]), "rootlessnode-data", p.Name)
	}
	return p.Default
}

// some returns the first three names and the number of the others.
func some(names []string) string {
	const most = 3
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}

// real returns path with symbolic links resolved, or "" if it does not exist.
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

// within reports whether path is dir or below dir. Both must be clean and absolute.
func within(dir, path string) bool {
	return dir == path || dir == "/" || strings.HasPrefix(path, dir+"/")
}

// entryNames are the names of the entries of a directory.
type entryNames struct {
	// known are the entries of layout.Data and their temporary files; foreign are all others.
	known, foreign []string
	// characteristic is set if a known name is rarely used by other programs.
	characteristic bool
}

// list returns the names of the entries of a data dir.
func list(d layout.Data) (entryNames, error) {
	entries, err := os.ReadDir(d.Dir)
	if err != nil {
		return entryNames{}, err
	}
	var f entryNames
	for _, e := range entries {
		f.add(e.Name(), d)
	}
	return f, nil
}

func (f *entryNames) add(name string, d layout.Data) {
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

// lostFound is a directory that belongs to the file system.
const lostFound = "lost+found"

// commonNames returns entries of layout.Data whose names other programs use too.
func commonNames() []string {
	return []string{"log", "kubeconfig", "etcd", "containers", "containerd", "cni", "images.json", "ports.json", "inside"}
}

// entryOf returns the entry of layout.Data for name, which may also be the name of a temporary file of that entry. It returns "" for a
// foreign name.
func entryOf(name string, d layout.Data) string {
	entries := d.Entries()
	if slices.Contains(entries, name) {
		return name
	}
	// The names of temporary files are .NAME.123, .tmp-NAME-123 and .STEM-123.
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

// Unmarked returns an error if the content of a data dir without a record must not be removed, because it may not be data of the node
// called name. certain means that it is. Data of earlier versions has no record.
func Unmarked(d layout.Data, name string, certain bool) error {
	f, err := list(d)
	if err != nil {
		return fmt.Errorf("read data dir %s: %w", d.Dir, err)
	}
	if certain || len(f.known) == 0 || len(f.foreign) == 0 && f.characteristic {
		return nil
	}
	err = fmt.Errorf("remove data dir %s: it has no record of node %q and contains other files (%s); nothing was removed",
		d.Dir, name, some(slices.Concat(f.foreign, f.known)))
	paths := make([]string, len(f.known))
	for i, n := range f.known {
		paths[i] = filepath.Join(d.Dir, n)
	}
	return errdefs.WithHint(errdefs.Class(errdefs.ErrConfig, err),
		"# check whether these files belong to the node; if so, remove them as root:\n"+RootRemoves(paths...))
}
