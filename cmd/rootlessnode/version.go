package main

import (
	"runtime"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/internal/preflight"
	"github.com/rootlessnode/rootlessnode/pkg/node"
)

// versions is the object that `version -o json` prints.
type versions struct {
	Version string `json:"version"`
	Go      string `json:"go"`
	// ComponentsDir and Components are empty if no components were found on this host.
	ComponentsDir string            `json:"componentsDir,omitempty"`
	Components    map[string]string `json:"components,omitempty"`
}

func newVersion(a *app) *cobra.Command {
	return a.withOutput(&cobra.Command{
		Use:         "version",
		Short:       "Print the versions of rootlessnode and its components",
		Annotations: map[string]string{allowRoot: "true"},
		RunE: func(*cobra.Command, []string) error {
			v, order := versionsOf(a)
			rows := [][]string{{"rootlessnode", v.Version}, {"go", v.Go}}
			for _, name := range order {
				rows = append(rows, []string{name, v.Components[name]})
			}
			a.show(v, table(rows))
			return nil
		},
	})
}

// versionsOf reads the manifest of the components, if there is one. `check` reports an invalid manifest. order lists the names in
// the order of the manifest.
func versionsOf(a *app) (v versions, order []string) {
	v = versions{Version: node.Version, Go: runtime.Version()}
	n, err := attached[handle](a)
	if err != nil || n.Config().ComponentsDir == "" {
		return v, nil
	}
	m, err := preflight.ManifestOf(n.Config())
	if err != nil {
		return v, nil
	}
	v.ComponentsDir, v.Components = m.Dir, map[string]string{}
	for _, c := range m.Components {
		v.Components[c.Name] = c.Version
		order = append(order, c.Name)
	}
	return v, order
}
