package node

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// Names returns the names of the account's nodes, sorted: those with data and those that are running. An embedding program's nodes are
// among them.
//
// Errors: if the directories of the nodes exist but are not readable.
func Names() ([]string, error) {
	xdgData, err := xdgDataHome()
	if err != nil {
		return nil, err
	}
	base, _ := runtimeDirs()
	var names []string
	var errs []error
	for _, dir := range []string{
		layout.RegistryDir(xdgData), filepath.Dir(layout.DefaultDataDir(xdgData, "x")), filepath.Dir(layout.NewRuntime(base, "x").Dir),
	} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		for _, e := range entries {
			name := strings.TrimSuffix(e.Name(), ".json")
			if config.ValidateName(name) == nil && (e.IsDir() || name != e.Name()) {
				names = append(names, name)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), errors.Join(errs...)
}
