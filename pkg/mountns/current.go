package mountns

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/moby/sys/mountinfo"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/proc"
)

// ProbeGuarantees returns the guarantees of the mount namespace of the calling process, for the node role of a rootless node.
// It determines (2) with test mounts below each of dirs: it mounts a tmpfs in the namespace and as a Bidirectional volume,
// and checks whether HostToContainer and Bidirectional volumes and the namespace see it. It derives (1) from the propagation
// of the root, because only root of the host can mount there. (3) is false, because it is impossible in another user
// namespace (mount_namespaces(7)). reasons contains why (2) does not hold; the reason for (1) is on the host. It removes all
// test mounts.
//
// Call it from a process whose children have no parent death signal, because it ends threads. Runs in: child.
func ProbeGuarantees(dirs ...string) (g Guarantees, reasons []string, err error) {
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return g, nil, fmt.Errorf("read the mounts: %w", err)
	}
	root := hostinfo.MountOver(mounts, "/")
	g.HostToInside = root != nil && peersOf(root.Optional).master != 0
	ns, err := os.Open(threadSelf + "/ns/mnt")
	if err != nil {
		return g, reasons, err
	}
	defer ns.Close()
	v, err := joinVolumes(ns)
	if err != nil {
		return g, reasons, err
	}
	defer v.stop()
	g.Inside = true
	for _, dir := range dirs {
		holds, err := probeBelow(dir, v)
		if err != nil {
			return g, reasons, err
		}
		if !holds {
			reasons = append(reasons, fmt.Sprintf("2: a mount below %s is not visible in volumes, or a mount of a volume is not visible to the node", dir))
		}
		g.Inside = g.Inside && holds
	}
	return g, reasons, nil
}

// probeBelow reports whether mounts of the caller's namespace and of a Bidirectional volume are visible to each other and to
// a HostToContainer volume.
func probeBelow(parent string, v volumes) (holds bool, err error) {
	dir, err := os.MkdirTemp(parent, "mountns-probe-")
	if err != nil {
		return false, err
	}
	defer func() { err = firstError(err, os.RemoveAll(dir)) }()
	p := probe{dir}
	fromNode, err := p.visible("node", hostView{}, v.slave, v.peer)
	if err != nil {
		return false, err
	}
	fromVolume, err := p.visible("volume", v.peer, hostView{}, v.slave)
	if err != nil {
		return false, err
	}
	return fromNode[0] && fromNode[1] && fromVolume[0] && fromVolume[1], nil
}

// Within runs fn on a thread in the mount namespace at path, for example /proc/PID/ns/mnt. For restrictions on the calling
// process see ProbeGuarantees. Runs in: either, with CAP_SYS_ADMIN over the namespace and CAP_SYS_CHROOT.
func Within(path string, fn func() error) error {
	ns, err := os.Open(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	return in(ns, fn)
}

// MountOf returns the mount of path, with links followed, in the calling thread's namespace: its mount point and its
// propagation, as the optional fields of proc_pid_mountinfo(5).
func MountOf(path string) (point, propagation string, err error) {
	if path, err = filepath.EvalSymlinks(path); err != nil {
		return "", "", err
	}
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return "", "", fmt.Errorf("read the mounts: %w", err)
	}
	m := hostinfo.MountOver(mounts, path)
	if m == nil {
		return "", "", fmt.Errorf("find the mount of %s: not found", path)
	}
	return m.Mountpoint, m.Optional, nil
}

// DeriveGuarantees returns the guarantees that follow from the propagation of the same mount on the host and inside, as
// MountOf returns them. private reports whether the host's mount is private. It is pure.
func DeriveGuarantees(host, inside string) (g Guarantees, private bool) {
	r := relation{host: peersOf(host), inside: peersOf(inside)}
	return r.guarantees(), r.host.shared == 0
}

// DaemonNamespace returns the mount namespace of the first process of that name (at most 15 bytes), as a path for Within, or
// "" if there is none. It ignores processes in other user or pid namespaces, because they belong to another node. Runs in:
// either, in the user and pid namespaces of the daemon.
func DaemonNamespace(name string) (path string, err error) {
	err = eachProcess(func(pid int, dir string) error {
		its, err := proc.Host.Name(pid)
		if err != nil || path != "" || its != name {
			return err
		}
		same, err := ofThisNode(dir)
		if same {
			path = filepath.Join(dir, "ns/mnt")
		}
		return err
	})
	return path, err
}
