package child

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

// seccompDefault reports whether the kubelet may confine containers by the runtime's seccomp profile. A runtime that cannot
// filter system calls refuses each container that it is asked to confine.
func (n *nodeRole) seccompDefault(ctx context.Context) bool {
	if !n.cfg.Kubelet.SeccompDefault {
		return false
	}
	err := kernelSeccomp()
	if err == nil && n.cfg.CRI.Runtime != config.RuntimeExternal { // which answers for itself
		err = runcSeccomp(ctx, n.binary("runc"))
	}
	if err != nil {
		n.warn("containers are not confined by seccomp unless they name a profile: %v", err)
	}
	return err == nil
}

// kernelSeccomp asks the kernel for filters by a call that cannot succeed: with no filter it is EFAULT where there are any
// (seccomp(2)).
func kernelSeccomp() error {
	err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, 0, 0, 0)
	if errors.Is(err, unix.EFAULT) {
		return nil
	}
	return fmt.Errorf("probe seccomp filters of the kernel: %w", err)
}

// runcSeccomp asks runc whether it was built with seccomp (the features document of the OCI runtime specification).
func runcSeccomp(ctx context.Context, runc string) error {
	out, err := exec.CommandContext(ctx, runc, "--root", layout.InsideRun+"/runc", "features").Output()
	if err != nil {
		return fmt.Errorf("probe seccomp of %s: %w", runc, err)
	}
	var features struct {
		Linux struct {
			Seccomp struct {
				Enabled bool `json:"enabled"`
			} `json:"seccomp"`
		} `json:"linux"`
	}
	if err := json.Unmarshal(out, &features); err != nil {
		return fmt.Errorf("probe seccomp of %s: %w", runc, err)
	}
	if !features.Linux.Seccomp.Enabled {
		return fmt.Errorf("probe seccomp of %s: it was built without seccomp", runc)
	}
	return nil
}
