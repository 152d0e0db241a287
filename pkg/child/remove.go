package child

import (
	"fmt"
	"os"

	rkchild "github.com/rootless-containers/rootlesskit/v3/pkg/child"

	"github.com/rootlessnode/rootlessnode/internal/datadir"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// RunRemove executes the child role of parent.RemoveData: it completes RootlessKit's handshake and starts RemoveInside.
// Only node.Dispatch calls it.
func RunRemove(rt layout.Runtime) error {
	err := setTargetRole(layout.RoleRemoveInside, rt)
	if err == nil {
		err = rkchild.Child(rkchild.Opt{
			PipeFDEnvKey: layout.EnvPipeFD, ChildUseActivationEnvKey: layout.EnvChildActivation, StateDirEnvKey: layout.EnvStateDir,
			TargetCmd: []string{"/proc/self/exe", "remove"}, MountProcfs: true,
		})
	}
	if _, reported := os.Stat(rt.Removed()); err != nil && reported != nil {
		err = fmt.Errorf("create a user namespace for the removal: %w", err)
		_ = layout.WriteJSON(rt.Removed(), datadir.Result{Fault: errdefs.ReportOf(err)}) // the parent gets the exit code in any case
	}
	return err
}

// RemoveInside removes a node's data as root of a user namespace and reports the result to the parent. Only
// node.Dispatch calls it.
func RemoveInside(rt layout.Runtime) error {
	var req datadir.Request
	err := layout.ReadJSON(rt.Removal(), &req)
	var res *datadir.Result
	if err == nil {
		res, err = datadir.Remove(req)
	}
	if err != nil {
		res = &datadir.Result{Dir: req.Dir, Fault: errdefs.ReportOf(fmt.Errorf("remove data dir %s: %w", req.Dir, err))}
	}
	return layout.WriteJSON(rt.Removed(), res)
}
