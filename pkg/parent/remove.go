package parent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	rkparent "github.com/rootless-containers/rootlesskit/v3/pkg/parent"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/datadir"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// RemoveData removes a node's data from its data dir (see datadir.Remove). Some files belong to subordinate ids and can be removed only
// in a user namespace with the same id map. Therefore RootlessKit creates one, and the child removes the files inside. The node must
// be stopped; RemoveData holds its lock. certain means that the data belongs to this node even without a record. Only node.Dispatch
// calls RemoveData, in a separate process.
//
// The result is not nil after the removal has begun.
//
// Errors: of class errdefs.ErrAlreadyRunning if the node is running; errdefs.ErrConfig if the directory is not this node's data dir;
// otherwise the files that could not be removed, with the fix as a hint.
//
// Runs in: parent.
func RemoveData(cfg *config.NodeConfig, rt layout.Runtime, certain bool) (res *datadir.Result, err error) {
	lock, err := takeLock(rt)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, lock.remove()) }()
	req, changed, err := removal(cfg, certain)
	if err != nil {
		return nil, err
	}
	dataLock, err := takeDataLock(layout.NewData(req.Dir), cfg.Name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, dataLock.Close()) }()
	if err := clearRuntime(rt); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(rt.StateDir(), 0o700); err != nil {
		return nil, fmt.Errorf("create %s: %w", rt.StateDir(), err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(rt.Dir)) }()
	if err := layout.WriteJSON(rt.Removal(), req); err != nil {
		return nil, err
	}
	err = runRemoval(cfg, rt)
	res = &datadir.Result{}
	if rerr := layout.ReadJSON(rt.Removed(), res); rerr != nil {
		// The child ended without a report.
		return nil, removalFailed(cfg, changed, err)
	}
	if res.Fault != nil {
		return nil, removalFailed(cfg, changed, res.Fault.Err())
	}
	if err := res.Err(); err != nil {
		if res.Untouched {
			err = errors.Join(changed, err)
		}
		return res, err
	}
	return res, nil
}

// removal returns the request for datadir.Remove, or an error if the data must not be removed. changed is not nil if the account's ids
// differ from those with which the data was created, or are unknown. In this case the data is removed only if all of it can be.
func removal(cfg *config.NodeConfig, certain bool) (req datadir.Request, changed, err error) {
	d := layout.NewData(cfg.DataDir)
	req.Dir = d.Dir
	record, err := datadir.ReadRecord(d, os.Getuid())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return req, nil, datadir.Unmarked(d, cfg.Name, certain)
	case err != nil:
		return req, nil, err
	case record.Name != cfg.Name:
		return req, nil, errdefs.Config("remove data dir %s: it belongs to node %q, not to node %q", d.Dir, record.Name, cfg.Name).
			With(errdefs.Hint{{Action: errdefs.DeleteData, Node: record.Name}})
	}
	ids, account, err := datadir.CurrentIDs(cfg.Subids.Source)
	if changes := record.IDs.Changes(ids); len(changes) > 0 {
		changed = datadir.IDsError(d, cfg.Name, account, changes)
	} else if err != nil {
		changed = errdefs.Class(errdefs.ErrPreflight, err)
	}
	req.TryFirst = changed != nil
	return req, changed, nil
}

// runRemoval starts the child that removes the data and waits for its end.
func runRemoval(cfg *config.NodeConfig, rt layout.Runtime) error {
	if err := setChildEnv(layout.RoleRemoveChild, rt); err != nil {
		return err
	}
	done := make(chan error, 1)
	chld := make(chan os.Signal, 1)
	signal.Notify(chld, syscall.SIGCHLD)
	defer signal.Stop(chld)
	go func() {
		runtime.LockOSThread() // the parent-death signal is bound to the thread that started the child (prctl(2))
		done <- rkparent.Parent(rkparent.Opt{
			PipeFDEnvKey: layout.EnvPipeFD, ChildUseActivationEnvKey: layout.EnvChildActivation,
			StateDir: rt.StateDir(), StateDirEnvKey: layout.EnvStateDir, CreatePIDNS: true,
			SubidSource: rkparent.SubidSource(cfg.Subids.Source),
		})
	}()
	// RootlessKit waits forever for a child that ended during the handshake.
	dead := newUnreaped()
	defer dead.close()
	var gone <-chan time.Time
	var died error
	for {
		select {
		case err := <-done:
			return err
		case <-chld:
			dead.check()
		case d := <-dead.found:
			died, gone = fmt.Errorf("the child ended during setup: %s", d.Status), time.After(returnLimit)
		case <-gone:
			return died
		}
	}
}

// removalFailed returns the error for a removal that did not begin.
func removalFailed(cfg *config.NodeConfig, changed, cause error) error {
	paths, foreign, _, err := datadir.Contents(cfg.DataDir)
	if err != nil || len(foreign) == 0 {
		paths = []string{cfg.DataDir}
	}
	if cause == nil {
		cause = errors.New("no report from the child process")
	}
	return errors.Join(fmt.Errorf("remove data dir %s: nothing was removed", cfg.DataDir), changed,
		errdefs.WithSteps(cause, errdefs.Text("# remove the data as root:", datadir.RootRemoves(paths...), "# then again:").Do(errdefs.DeleteData)))
}
