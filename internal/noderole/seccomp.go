package noderole

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/runtime"
)

// seccompDefault reports whether the kubelet may confine containers with the runtime's seccomp profile by default. A
// runtime without seccomp support would refuse these containers.
func seccompDefault(ctx context.Context, cfg *config.NodeConfig) (bool, []string) {
	if !cfg.Kubelet.SeccompDefault {
		return false, nil
	}
	err := kernelSeccomp()
	if err == nil && runtime.Of(cfg).RunsBundled() { // an external runtime cannot be tested
		err = runcSeccomp(ctx, filepath.Join(cfg.ComponentsDir, runtime.OCIProgram))
	}
	if err != nil {
		return false, []string{fmt.Sprintf("containers without a seccomp profile run unconfined: %v", err)}
	}
	return true, nil
}

// kernelSeccomp checks for seccomp filters with a call that cannot succeed: without a filter, the kernel returns EFAULT
// if it supports filters (seccomp(2)).
func kernelSeccomp() error {
	err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, 0, 0, 0)
	if errors.Is(err, unix.EFAULT) {
		return nil
	}
	return fmt.Errorf("check the kernel for seccomp filters: %w", err)
}

// runcSeccomp checks whether runc was built with seccomp (the features document of the OCI runtime specification).
func runcSeccomp(ctx context.Context, runc string) error {
	out, err := exec.CommandContext(ctx, runc, "--root", layout.InsideRun+"/runc", "features").Output()
	if err != nil {
		return fmt.Errorf("check seccomp support of %s: %w", runc, err)
	}
	var features struct {
		Linux struct {
			Seccomp struct {
				Enabled bool `json:"enabled"`
			} `json:"seccomp"`
		} `json:"linux"`
	}
	if err := json.Unmarshal(out, &features); err != nil {
		return fmt.Errorf("check seccomp support of %s: %w", runc, err)
	}
	if !features.Linux.Seccomp.Enabled {
		return fmt.Errorf("check seccomp support of %s: built without seccomp", runc)
	}
	return nil
}
