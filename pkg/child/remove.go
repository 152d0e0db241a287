package child

import (
	"errors"
	"os"
	"path/filepath"

	rkchild "github.com/rootless-containers/rootlesskit/v3/pkg/child"

	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

// RunRemove is the child role of parent.RemoveData: it goes through RootlessKit's handshake and starts RemoveInside.
// Called by node.Dispatch alone.
func RunRemove() error {
	if err := os.Setenv(layout.EnvRole, layout.RoleRemoveInside); err != nil {
		return err
	}
	return rkchild.Child(rkchild.Opt{
		PipeFDEnvKey: layout.EnvPipeFD, RunActivationHelperEnvKey: layout.EnvActivationHelper,
		ChildUseActivationEnvKey: layout.EnvChildActivation, StateDirEnvKey: layout.EnvStateDir,
		TargetCmd: []string{"/proc/self/exe", "remove"}, MountProcfs: true,
	})
}

// RemoveInside removes the data dir as the root of a user namespace. Called by node.Dispatch alone.
func RemoveInside() error {
	dir := os.Getenv(layout.EnvRemove)
	if !filepath.IsAbs(dir) || filepath.Clean(dir) == "/" {
		return errors.New("remove the data dir: no directory is named")
	}
	return os.RemoveAll(dir)
}
