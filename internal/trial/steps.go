package trial

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/proc"
)

// do does the steps. Those that change the meaning of paths come last.
func (w Work) do(ctx context.Context) Result {
	r := Result{}
	r.add(StepHostName, os.NewSyscallError("sethostname", unix.Sethostname([]byte("trial"))))
	r.add(StepPropagation, mount("none", "/", "", unix.MS_REC|unix.MS_SLAVE))
	if w.Dir != "" {
		w.files(r)
		if w.Mount != "" && w.Umount != "" {
			err := command(ctx, "", w.Mount, "-t", "tmpfs", "none", w.Dir)
			if err == nil {
				err = command(ctx, "", w.Umount, w.Dir)
			}
			r.add(StepMount, err)
		}
	}
	if w.Tun != "" {
		r.add(StepTun, createTap(w.Tun))
	}
	w.network(ctx, r)
	r.add(StepTmp, mount("none", "/tmp", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV))
	_ = mount("none", "/sys", "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC) // RootlessKit continues without it too
	// In a container, this cgroup may already be mounted there (EBUSY). The node is in a cgroup below.
	if err := mount("none", "/sys/fs/cgroup", "cgroup2", 0); !errors.Is(err, unix.EBUSY) {
		r.add(StepCgroup, err)
	}
	r.add(StepProc, mount("none", "/proc", "proc", 0))
	return r
}

func mount(source, target, fsType string, flags uintptr) error {
	if err := unix.Mount(source, target, fsType, flags, ""); err != nil {
		return &os.PathError{Op: "mount", Path: target, Err: err}
	}
	return nil
}

// createTap creates a device like `ip tuntap add mode tap`. It vanishes when the descriptor is closed.
func createTap(device string) error {
	fd, err := unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: device, Err: err}
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	request, err := unix.NewIfreq("trial0")
	if err != nil {
		return err
	}
	request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	return os.NewSyscallError("ioctl TUNSETIFF", unix.IoctlIfreq(fd, unix.TUNSETIFF, request))
}

// natRules are those that kube-proxy, flannel and the CNI plugins need: chains of every kind, translation and connection tracking.
const natRules = `add table ip trial
add chain ip trial post { type nat hook postrouting priority 100; }
add chain ip trial pre { type nat hook prerouting priority -100; }
add chain ip trial filter { type filter hook forward priority 0; }
add rule ip trial post ct state new masquerade
add rule ip trial pre tcp dport 1 dnat to 192.0.2.1:1
`

// network creates devices and rules in the helper's network namespace.
func (w Work) network(ctx context.Context, r Result) {
	if w.IP != "" {
		r.add(StepVeth, command(ctx, "", w.IP, "link", "add", "trial1", "type", "veth", "peer", "name", "trial2"))
		r.add(StepBridge, command(ctx, "", w.IP, "link", "add", "trial3", "type", "bridge"))
		r.add(StepVXLAN, command(ctx, "", w.IP, "link", "add", "trial4", "type", "vxlan", "id", "1", "dstport", "8472"))
	}
	r.add(StepNAT, w.nat(ctx))
}

// nat loads rules with the first program that can. It returns nil if there is no program.
func (w Work) nat(ctx context.Context) error {
	var faults []error
	for _, way := range []struct {
		program, input string
		args           []string
	}{
		{w.NFT, natRules, []string{"-f", "-"}},
		{w.IPTables, "", []string{"-w", "-t", "nat", "-A", "POSTROUTING", "-j", "MASQUERADE"}},
	} {
		if way.program == "" {
			continue
		}
		err := command(ctx, way.input, way.program, way.args...)
		if err == nil {
			return nil
		}
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}

// command runs a program. The error is the first line of its output.
func command(ctx context.Context, input, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	first, _, _ := bytes.Cut(bytes.TrimSpace(out), []byte("\n"))
	if err != nil && len(first) == 0 {
		return fmt.Errorf("%s: %w", program, proc.Failure(err, nil))
	}
	return proc.Failure(err, first)
}
