package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/datadir"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

// locate sets the data dir of cfg, without links: the one that cfg names, else that of the node's last start, else the default.
// A path that is not absolute stays, for validation to report.
func (n *Node) locate(cfg *config.NodeConfig) error {
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
		return nil // it cannot be reached any more: see missing
	}
	return err
}

// defaultDataDir is where the node keeps its data unless it was started with another dataDir.
func (n *Node) defaultDataDir() string {
	dir := layout.DefaultDataDir(n.reg.XDGDataHome, n.Config().Name)
	if real, err := datadir.Resolve(dir); err == nil {
		return real
	}
	return dir
}

// place is the data dir with the directories that it must keep away from.
func (n *Node) place() datadir.Place {
	p := datadir.Place{
		Name: n.Config().Name, Dir: n.data.Dir, UID: os.Getuid(), Default: n.defaultDataDir(),
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

// claim makes the data dir the node's, before anything is put there, and records it in the account's registry.
func (n *Node) claim() error {
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
	if before := slices.Concat(dirs, []string{n.defaultDataDir()})[0]; before != n.data.Dir && exists(before) {
		n.log.Warnf("node %q had its data in %s before, and that data stays; to continue with it, stop the node and start it with --data-dir %[2]s", name, before)
	}
	return n.reg.Put(name, n.data.Dir)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// missing refuses to start from scratch where the node had its data elsewhere, which is not there now. chosen is the data dir
// of the caller's configuration.
func (n *Node) missing(chosen string) error {
	if chosen != "" || n.data.Dir == n.defaultDataDir() || exists(n.data.Dir) {
		return nil
	}
	name := n.Config().Name
	return errdefs.WithHintf(errdefs.Class(errdefs.ErrConfig,
		fmt.Errorf("dataDir: the data of node %q was in %s at its last start, and that directory does not exist now", name, n.data.Dir)),
		"# mount its disk; or start with new data there:\nrootlessnode --name %[1]s up --data-dir %[2]s\n"+
			"# or forget it, so that the node uses its default data dir:\nrootlessnode --name %[1]s down --delete-data", name, n.data.Dir)
}

// DeleteData removes the data of a node that does not run from its data dir, with what belongs to subordinate ids, and then the
// data dir. Files there that are not the node's, and mounts, are kept: the result, which is nil where there was no data, names
// them.
//
// Errors: of class ErrConfig for a directory that is not the node's data dir; else what could not be removed, and why. The
// removal can be repeated.
func (n *Node) DeleteData(ctx context.Context) (*datadir.Result, error) {
	cfg := *n.Config()
	dir, err := datadir.Resolve(cfg.DataDir)
	switch {
	case err != nil && n.registered():
		return nil, n.reg.Drop(cfg.Name, cfg.DataDir) // a link that leads nowhere
	case err != nil:
		return nil, err
	}
	cfg.DataDir = dir
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, n.reg.Drop(cfg.Name, dir)
	}
	n.cfg.Store(&cfg)
	if res := n.onlyForeign(dir); res != nil {
		return n.forget(res)
	}
	h, err := n.startHelper(layout.RoleRemove)
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
	if dir == n.defaultDataDir() {
		_ = os.Remove(filepath.Dir(dir)) // if it is empty
	}
	return n.forget(h.removed)
}

// forget drops a data dir whose data is gone from the registry, and what leads to it or to nothing.
func (n *Node) forget(res *datadir.Result) (*datadir.Result, error) {
	name := n.Config().Name
	dirs, err := n.reg.Find(name)
	if err != nil {
		return res, err
	}
	next := n.defaultDataDir()
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

// onlyForeign is the result for a data dir of the registry in which nothing is the node's any more: it was removed by other means,
// and the directory is used for something else.
func (n *Node) onlyForeign(dir string) *datadir.Result {
	if !n.registered() || dir == n.defaultDataDir() || exists(layout.NewData(dir).Record()) {
		return nil
	}
	known, foreign, likely, err := datadir.Contents(dir)
	if err != nil || likely {
		return nil
	}
	return &datadir.Result{Dir: dir, Foreign: append(known, foreign...)}
}

// registered reports whether the registry has the data dir as the node's.
func (n *Node) registered() bool {
	dirs, err := n.reg.Find(n.Config().Name)
	return err == nil && slices.Contains(dirs, n.Config().DataDir)
}

// dataCertain reports whether the data in the data dir is the node's even if it has no record: an earlier version made it, or
// the user removed a damaged record.
func (n *Node) dataCertain() bool {
	if n.Config().DataDir == n.defaultDataDir() {
		return true
	}
	_, _, likely, err := datadir.Contents(n.Config().DataDir)
	return err == nil && likely && n.registered()
}
