package noderole

import (
	"context"
	"errors"
	"fmt"
	"os/exec"

	"github.com/rootlessnode/rootlessnode/internal/proc"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// detectProxyMode chooses kube-proxy's mode by testing what each mode needs from the kernel, unless the config has one.
func detectProxyMode(ctx context.Context, mode string) (string, []string, error) {
	if mode != "auto" {
		return mode, nil, nil
	}
	nftErr := loadRules(ctx, "add table ip rootlessnode-probe\ndelete table ip rootlessnode-probe\n")
	if nftErr == nil {
		return "nftables", nil, nil
	}
	iptErr := runCommand(exec.CommandContext(ctx, "iptables", "-w", "-t", "nat", "-S", "POSTROUTING"))
	if iptErr == nil {
		return "iptables", []string{fmt.Sprintf("cannot use nftables (%v); kube-proxy uses iptables", nftErr)}, nil
	}
	err := errors.Join(fmt.Errorf("nftables: %w", nftErr), fmt.Errorf("iptables: %w", iptErr))
	return "", nil, errdefs.Preflight("choose kube-proxy's mode: %w", err).
		Hint("apt-get install nftables  # or iptables", "modprobe nf_tables  # or ip_tables and iptable_nat")
}

// runCommand runs cmd and adds its output to the error.
func runCommand(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w", cmd.Path, proc.Failure(err, out))
	}
	return nil
}
