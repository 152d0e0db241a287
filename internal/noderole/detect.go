package noderole

import (
	"context"
	"fmt"
	"os/exec"
	"slices"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/runtime"
	"github.com/rootlessnode/rootlessnode/internal/specfilter"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// detect returns env with the fields that depend on the machine, and the warnings for the user. The warnings are also
// returned with an error.
func detect(ctx context.Context, env component.Env) (component.Env, []string, error) {
	var (
		storage            component.Storage
		machine            hostinfo.Machine
		seccomp            bool
		proxyMode, ociPath string
		runtimes           map[string]component.OCIRuntime
		warnings           [4][]string
		g                  errgroup.Group
	)
	g.Go(func() (err error) { storage, warnings[0], err = runtime.Of(env.Config).Detect(); return err })
	g.Go(func() error { seccomp, warnings[1] = seccompDefault(ctx, env.Config); return nil })
	g.Go(func() (err error) {
		proxyMode, warnings[2], err = detectProxyMode(ctx, env.Config.KubeProxy.Mode)
		return err
	})
	g.Go(func() (err error) { ociPath, err = ociRuntime(env); return err })
	g.Go(func() (err error) { runtimes, err = runtime.DetectOCIRuntimes(env.Config); return err })
	machine, err := hostinfo.ReadMachine("/")
	if err != nil {
		warnings[3] = []string{fmt.Sprintf("the node's allocatable resources may be wrong: %v", err)}
	}
	err = g.Wait()
	env.Storage, env.Machine, env.SeccompDefault, env.KubeProxyMode, env.OCIRuntime = storage, machine, seccomp, proxyMode, ociPath
	env.OCIRuntimes = runtimes
	env.LocalStorageCapacityIsolation = supportsStorageStats(layout.InsideKubelet)
	return env, slices.Concat(warnings[:]...), err
}

// shimProgram runs runc without the limits that cannot be set, and other OCI runtimes of the host.
const shimProgram = "rootlessnode-runc"

// ociRuntime returns the path of runc, or of the shim if a cgroup controller is missing, because runc refuses
// containers whose limits it cannot set.
func ociRuntime(env component.Env) (string, error) {
	if len(specfilter.Missing(env.Controllers)) == 0 {
		return env.BinDir(runtime.OCIProgram), nil
	}
	shim := env.BinDir(shimProgram)
	if _, err := exec.LookPath(shim); err != nil {
		return "", errdefs.Preflight("find the OCI runtime shim: %w", err).Hint("make build")
	}
	return shim, nil
}

// supportsStorageStats reports whether the kubelet can account for local storage below dir. On btrfs and FUSE the
// statistics come from devices that are not visible in a user namespace, and the kubelet does not start (KEP-2033).
func supportsStorageStats(dir string) bool {
	return !slices.Contains([]int64{unix.BTRFS_SUPER_MAGIC, unix.FUSE_SUPER_MAGIC}, fileSystemType(dir))
}

// fileSystemType returns f_type of statfs(2), or 0 on error.
func fileSystemType(dir string) int64 {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return 0
	}
	return int64(st.Type) //nolint:unconvert // the field's type depends on the architecture
}
