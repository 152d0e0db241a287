package preflight

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component/kubelet"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// kubernetesPrefix begins the name of a directory with an older minor version of Kubernetes, next to the other components. It has a
// manifest of its own.
const kubernetesPrefix = "kubernetes-"

// ManifestOf reads the manifest of the components that a node with config c runs: the one in the components directory, with the entries of
// the Kubernetes version that c selects.
//
// Errors: of class errdefs.ErrConfig if the components do not include that version.
func ManifestOf(c *config.NodeConfig) (*Manifest, error) {
	return readManifest(c.ComponentsDir, c.KubernetesVersion)
}

// readManifest is ManifestOf for the components in dir and a minor version, or "" for that of the manifest in dir.
func readManifest(dir, minor string) (*Manifest, error) {
	m, err := ReadManifest(dir)
	if err != nil || minor == "" || m.kubernetes() == minor {
		return m, err
	}
	m.older = filepath.Join(dir, kubernetesPrefix+minor)
	older, err := ReadManifest(m.older)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, missingKubernetes(m, minor)
	}
	if err != nil {
		return nil, err
	}
	for _, e := range older.Components {
		e.Path = filepath.Join(kubernetesPrefix+minor, e.Path)
		m.Components = slices.DeleteFunc(m.Components, func(o ManifestEntry) bool { return o.Name == e.Name })
		m.Components = append(m.Components, e)
	}
	slices.SortFunc(m.Components, func(a, b ManifestEntry) int { return strings.Compare(a.Name, b.Name) })
	return m, nil
}

// kubernetes returns the minor version of Kubernetes in the form 1.37, or "" if the manifest does not contain it.
func (m *Manifest) kubernetes() string {
	c, _ := m.Component(kubelet.Name)
	v, ok := parseVersion(c.Version)
	if !ok {
		return ""
	}
	return fmt.Sprintf("%d.%d", v[0], v[1])
}

func missingKubernetes(m *Manifest, minor string) error {
	return errdefs.Config("kubernetesVersion: v%s: not among the components in %s, which have %s", minor, m.Dir, strings.Join(m.kubernetesVersions(), ", ")).
		Hint("# build it, or use one of these versions:", "make components KUBERNETES="+minor).
		Do(errdefs.Start, "kubernetesVersion=v"+m.kubernetes())
}

// kubernetesVersions returns the minor versions of Kubernetes in the components directory, that of m first.
func (m *Manifest) kubernetesVersions() []string {
	versions := []string{"v" + m.kubernetes()}
	dirs, _ := filepath.Glob(filepath.Join(m.Dir, kubernetesPrefix+"*", ManifestFile))
	for _, file := range slices.Backward(dirs) {
		versions = append(versions, "v"+strings.TrimPrefix(filepath.Base(filepath.Dir(file)), kubernetesPrefix))
	}
	return versions
}

// HasKubernetes reports whether the components in dir include a minor version of Kubernetes.
func HasKubernetes(dir, minor string) bool {
	_, err := readManifest(dir, minor)
	return err == nil
}

// ProgramDirs returns the directories with the programs of the components of a node with config c, in their order of precedence.
func ProgramDirs(c *config.NodeConfig) []string {
	if m, err := ManifestOf(c); err == nil && m.older != "" {
		return []string{m.older, m.Dir}
	}
	return []string{c.ComponentsDir}
}

// Program returns the path of a component's program or directory called name in the first of dirs that has it, or else in the last one.
func Program(dirs []string, name string) (path string) {
	for _, dir := range dirs {
		path = filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			break
		}
	}
	return path
}
