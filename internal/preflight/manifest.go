package preflight

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// ManifestFile is the name of the manifest in the component directory.
const ManifestFile = "manifest.json"

// manifestSchema is the only supported version of the manifest.
const manifestSchema = 1

// Manifest lists the programs and images of a node. `make components` writes it.
type Manifest struct {
	// Dir is the directory that the manifest was read from.
	Dir string `json:"-"`
	// older is the directory of an older Kubernetes whose entries replace those of the manifest (ManifestOf), or "".
	older      string
	Schema     int             `json:"schema"`
	Components []ManifestEntry `json:"components"`
	Images     []ManifestEntry `json:"images"`
}

// ManifestEntry is one program or one image archive. Several programs may share a file.
type ManifestEntry struct {
	// Name is the name of a program (kubelet, cni/bridge) or the full name of an image.
	Name    string `json:"name"`
	Version string `json:"version"`
	// Path is relative to Dir.
	Path   string `json:"path"`
	SHA256 string `json:"sha256"`
	// Size is the size in bytes.
	Size int64 `json:"size"`
}

// File returns the absolute path of an entry of m.
func (m *Manifest) File(e ManifestEntry) string { return filepath.Join(m.Dir, e.Path) }

// Component returns the program with that name.
func (m *Manifest) Component(name string) (ManifestEntry, bool) {
	for _, e := range m.Components {
		if e.Name == name {
			return e, true
		}
	}
	return ManifestEntry{}, false
}

// ReadManifest reads the manifest in dir, an absolute path. It does not check the files that the manifest lists.
func ReadManifest(dir string) (*Manifest, error) {
	b, err := os.ReadFile(filepath.Join(dir, ManifestFile))
	if err != nil {
		return nil, err
	}
	m, err := parseManifest(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, ManifestFile), err)
	}
	m.Dir = dir
	return m, nil
}

func parseManifest(b []byte) (*Manifest, error) {
	m := &Manifest{}
	if err := json.Unmarshal(b, m); err != nil {
		return nil, err
	}
	if m.Schema != manifestSchema {
		return nil, fmt.Errorf("unsupported schema %d, must be %d", m.Schema, manifestSchema)
	}
	seen := map[string]bool{}
	for _, e := range append(append([]ManifestEntry{}, m.Components...), m.Images...) {
		switch {
		case e.Name == "" || e.Path == "" || e.SHA256 == "":
			return nil, fmt.Errorf("entry %q has no name, path or sha256", e.Name)
		case filepath.IsAbs(e.Path):
			return nil, fmt.Errorf("entry %s: path %s is not relative", e.Name, e.Path)
		case seen[e.Name]:
			return nil, fmt.Errorf("duplicate entry %s", e.Name)
		}
		seen[e.Name] = true
	}
	return m, nil
}

// FindComponents returns the directory that contains the components' manifest. If explicit is not empty, it searches only that
// directory. Otherwise it returns the first match of ../libexec/rootlessnode relative to the executable exe, the user's
// directory below xdgDataHome, and the directories of path. tried lists the searched directories in order. The error has no
// hint, because Run adds one.
func FindComponents(explicit, exe, xdgDataHome string, path []string) (dir string, tried []string, err error) {
	var candidates []string
	if explicit != "" {
		candidates = []string{explicit}
	} else {
		if exe != "" {
			candidates = append(candidates, filepath.Join(filepath.Dir(resolved(exe)), "..", "libexec", "rootlessnode"))
		}
		if xdgDataHome != "" {
			candidates = append(candidates, layout.UserComponentsDir(xdgDataHome))
		}
		candidates = append(candidates, path...)
	}
	for _, c := range candidates {
		if !filepath.IsAbs(c) {
			continue
		}
		c = filepath.Clean(c)
		tried = append(tried, c)
		if st, err := os.Stat(filepath.Join(c, ManifestFile)); err == nil && st.Mode().IsRegular() {
			return c, tried, nil
		}
	}
	if len(tried) == 0 {
		return "", tried, errors.New("find components: no directory to look in")
	}
	return "", tried, fmt.Errorf("find components: no %s in %s", ManifestFile, strings.Join(tried, ", "))
}

// resolved returns exe with symbolic links resolved, so that a link in ~/bin leads to the directory of the program itself.
func resolved(exe string) string {
	if r, err := filepath.EvalSymlinks(exe); err == nil {
		return r
	}
	return exe
}
