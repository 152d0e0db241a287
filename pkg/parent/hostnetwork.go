package parent

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/filewatch"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/preflight"
)

// newOverlaps returns a function that returns the routes of the host that overlap the node's networks, without those that the first
// call found: the checks before the start have reported them.
func newOverlaps(c *config.NodeConfig) func() (any, error) {
	var known []layout.RouteOverlap
	first := true
	return func() (any, error) {
		found, err := preflight.RouteOverlaps(c)
		if err != nil {
			return nil, err
		}
		if first {
			known, first = found, false
		}
		return slices.DeleteFunc(append([]layout.RouteOverlap{}, found...), func(o layout.RouteOverlap) bool {
			return slices.ContainsFunc(known, func(k layout.RouteOverlap) bool { return k.Range == o.Range && k.Route == o.Route })
		}), nil
	}
}

// readResolver reads the host's resolver configuration. A host without one has an empty configuration.
func readResolver() (any, error) {
	r, err := hostinfo.ReadResolver(hostinfo.ResolvConf)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return r, err
}

// watchResolver updates the files also when the host's resolv.conf is replaced, or the file to which it is a link. It passes errors
// to report until stop is called.
func (w *addressWatcher) watchResolver(report func(error)) (stop func(), err error) {
	paths := []string{hostinfo.ResolvConf}
	if target, err := filepath.EvalSymlinks(hostinfo.ResolvConf); err == nil && target != paths[0] {
		paths = append(paths, target)
	}
	var all []*filewatch.Watch[[]byte]
	var following sync.WaitGroup
	stop = func() {
		for _, f := range all {
			f.Close()
		}
		following.Wait()
	}
	for _, path := range paths {
		f, err := filewatch.New(path, os.ReadFile)
		if err != nil {
			stop()
			return nil, err
		}
		all = append(all, f)
		following.Go(func() {
			for range f.Changed() {
				if err := w.update(); err != nil {
					report(err)
				}
			}
		})
	}
	return stop, nil
}
