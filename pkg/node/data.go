package node

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/datadir"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/preflight"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// locate sets the data dir of cfg with symbolic links resolved: the data dir in cfg, otherwise that of the node's last start,
// otherwise the default. It leaves a relative path unchanged because validation reports it.
func locate(n *Node, cfg *config.NodeConfig) error {
	remembered := false
	if cfg.DataDir == "" {
		dirs, err := n.reg.Find(cfg.Name)
		switch {
		case err != nil:
			return err
		case len(dirs) > 0:
			cfg.DataDir, remembered = dirs[0], true
		default:
			cfg.DataDir = layout.DefaultDataDir(n.reg.XDGDataHome, cfg.Name)
		}
	}
	if !filepath.IsAbs(cfg.DataDir) || filepath.Clean(cfg.DataDir) != cfg.DataDir {
		return nil
	}
	dir, err := datadir.Resolve(cfg.DataDir)
	switch {
	case err == nil:
		cfg.DataDir = dir
	case remembered:
		return nil // the data dir is not accessible; checkDataPresent reports it
	}
	return err
}

// Locate returns where the files of the node called name are expected, and its entry in the account's registry. Unlike Attach, it also
// works if these files are damaged.
func Locate(name string) (rt RuntimePaths, data DataPaths, registry string, err error) {
	xdgData, err := xdgDataHome()
	if err != nil {
		return rt, data, "", err
	}
	base, _, err := preflight.ResolveRuntimeDir(os.Environ(), os.Getuid(), "")
	if err != nil {
		base = filepath.Join(hostinfo.UserRuntimeDirs, strconv.Itoa(os.Getuid()))
	}
	dir := layout.DefaultDataDir(xdgData, name)
	if dirs, err := (datadir.Registry{XDGDataHome: xdgData}).Find(name); err == nil && len(dirs) > 0 {
		dir = dirs[0]
	}
	return layout.NewRuntime(base, name), layout.NewData(dir), layout.RegistryEntry(xdgData, name), nil
}

// defaultDataDir returns the data dir of a node that sets no dataDir.
func defaultDataDir(n *Node) string {
	dir := layout.DefaultDataDir(n.reg.XDGDataHome, n.Config().Name)
	if real, err := datadir.Resolve(dir); err == nil {
		return real
	}
	return dir
}

// place returns the data dir with the directories that it must not overlap.
func place(n *Node) datadir.Place {
	p := datadir.Place{
		Name: n.Config().Name, Dir: n.data.Dir, UID: os.Getuid(), Default: defaultDataDir(n),
		RuntimeDir: filepath.Dir(filepath.Dir(n.rt.Dir)), ComponentsDir: n.Config().ComponentsDir, Exe: executable(), Registry: n.reg,
	}
	if home, err := os.UserHomeDir(); err == nil {
		p.Homes = append(p.Homes, home)
	}
	if u, err := user.Current(); err == nil {
		p.Homes = append(p.Homes, u.HomeDir)
	}
	return p
}

// claim marks the data dir as the node's before any data is written to it, and records it in the account's registry. If the removal of
// former data was interrupted, it is completed first.
func claim(ctx context.Context, n *Node) error {
	if n.deleting {
		n.log.Warnf("the removal of the data in %s was interrupted; completing it before the start", n.data.Dir)
		if _, err := n.DeleteData(ctx); err != nil {
			return err
		}
		n.deleting = false
	}
	name := n.Config().Name
	dirs, err := n.reg.Find(name)
	if err != nil {
		return err
	}
	ids, account, err := datadir.CurrentIDs(n.Config().Subids.Source)
	if err != nil {
		return errdefs.Class(errdefs.ErrPreflight, err)
	}
	if err := datadir.Claim(n.data, name, ids, account); err != nil {
		return err
	}
	if err := errors.Join(recordIdentity(n), recordSettings(n), recordWarnings(n)); err != nil {
		return err
	}
	if before := slices.Concat(dirs, []string{defaultDataDir(n)})[0]; before != n.data.Dir && exists(before) {
		n.log.Warnf("node %q used the data dir %s before, and its data is still there; "+
			"to continue with that data, stop the node and start it with --data-dir %[2]s", name, before)
	}
	if err := n.reg.Put(name, n.data.Dir); err != nil {
		return err
	}
	return pickAPIPort(n)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// checkDataPresent returns an error if the data dir of the last start does not exist now, because a start would create a new and
// empty node. chosen is the data dir in the caller's configuration.
func checkDataPresent(n *Node, chosen string) error {
	if chosen != "" || n.data.Dir == defaultDataDir(n) || exists(n.data.Dir) {
		return nil
	}
	name := n.Config().Name
	return errdefs.Config("dataDir: the data of node %q was in %s at its last start, and that directory does not exist now", name, n.data.Dir).
		Hint("# mount the disk of that directory, or start with new data there:").Do(errdefs.Start, "dataDir="+n.data.Dir).
		Hint("# or remove the directory from the registry, so that the node uses its default data dir:").Do(errdefs.DeleteData)
}

// DeleteData removes the data of a stopped node, including files that belong to subordinate ids, and then the data dir itself. It
// keeps foreign files and mounts in the data dir and lists them in the result. The result is nil if there was no data.
//
// Errors: of class errdefs.ErrConfig if the directory is not the node's data dir; otherwise the files that could not be removed,
// with the reason. DeleteData can be called again after an error.
func (n *Node) DeleteData(ctx context.Context) (*DeletedData, error) {
	cfg := *n.Config()
	dir, err := datadir.Resolve(cfg.DataDir)
	switch {
	case err != nil && registered(n):
		return nil, n.reg.Drop(cfg.Name, cfg.DataDir) // a dangling symbolic link
	case err != nil:
		return nil, err
	}
	cfg.DataDir = dir
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, n.reg.Drop(cfg.Name, dir)
	}
	n.cfg.Store(&cfg)
	if res := onlyForeign(n, dir); res != nil {
		return unregister(n, res)
	}
	h, err := startHelper(n, layout.RoleRemove)
	if err != nil {
		return nil, err
	}
	select {
	case <-h.ended:
	case <-ctx.Done():
		return nil, errors.Join(context.Cause(ctx), h.cmd.Process.Kill())
	}
	if h.err != nil {
		return h.removed, h.err
	}
	if dir == defaultDataDir(n) {
		_ = os.Remove(filepath.Dir(dir)) // if it is empty
	}
	return unregister(n, h.removed)
}

// unregister removes a deleted data dir from the registry, with all entries that resolve to it or that do not resolve.
func unregister(n *Node, res *datadir.Result) (*datadir.Result, error) {
	name := n.Config().Name
	dirs, err := n.reg.Find(name)
	if err != nil {
		return res, err
	}
	next := defaultDataDir(n)
	for _, dir := range slices.Backward(dirs) {
		if real, rerr := datadir.Resolve(dir); rerr != nil || real == res.Dir {
			err = errors.Join(err, n.reg.Drop(name, dir))
		} else {
			next = dir
		}
	}
	if next != res.Dir && exists(next) {
		res.Next = next
	}
	return res, err
}

// onlyForeign returns the result for a registered data dir that no longer contains data of the node: the data was removed by other
// means, and the directory is used for something else. It returns nil otherwise.
func onlyForeign(n *Node, dir string) *datadir.Result {
	if !registered(n) || dir == defaultDataDir(n) || exists(layout.NewData(dir).Record()) {
		return nil
	}
	known, foreign, likely, err := datadir.Contents(dir)
	if err != nil || likely {
		return nil
	}
	return &datadir.Result{Dir: dir, Foreign: append(known, foreign...)}
}

// registered reports whether the registry lists the data dir for the node.
func registered(n *Node) bool {
	dirs, err := n.reg.Find(n.Config().Name)
	return err == nil && slices.Contains(dirs, n.Config().DataDir)
}

// dataCertain reports whether the data in the data dir belongs to the node even without a record: an earlier version created it,
// or the user removed a damaged record.
func dataCertain(n *Node) bool {
	if n.Config().DataDir == defaultDataDir(n) {
		return true
	}
	_, _, likely, err := datadir.Contents(n.Config().DataDir)
	return err == nil && likely && registered(n)
}
