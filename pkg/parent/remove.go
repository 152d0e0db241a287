package parent

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	rkparent "github.com/rootless-containers/rootlesskit/v3/pkg/parent"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

// RemoveData removes a node's data dir. Files in it belong to subordinate ids, which only a user namespace with the same
// map may remove, so RootlessKit makes one and the child removes it from inside. The node must not run: its lock is
// held meanwhile. Called by node.Dispatch alone, in a process of its own. Runs in: parent.
func RemoveData(cfg *config.NodeConfig, rt layout.Runtime) (err error) {
	lock, err := takeLock(rt)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, os.Remove(rt.Lock()), lock.Close())
		_ = os.Remove(filepath.Dir(rt.Lock())) // if it is empty
	}()
	if err := clearRuntime(rt); err != nil {
		return err
	}
	if err := os.MkdirAll(rt.StateDir(), 0o700); err != nil {
		return fmt.Errorf("make %s: %w", rt.StateDir(), err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(rt.Dir)) }()
	if err := errors.Join(os.Setenv(layout.EnvRemove, cfg.DataDir), os.Unsetenv(layout.EnvRole)); err != nil {
		return err
	}
	err = rkparent.Parent(rkparent.Opt{
		PipeFDEnvKey: layout.EnvPipeFD, ChildUseActivationEnvKey: layout.EnvChildActivation,
		StateDir: rt.StateDir(), StateDirEnvKey: layout.EnvStateDir, CreatePIDNS: true,
		SubidSource: rkparent.SubidSource(cfg.Subids.Source),
	})
	if err != nil {
		return fmt.Errorf("remove %s: %w", cfg.DataDir, err)
	}
	return nil
}
