package mountns

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
)

// ProbeGuarantees finds out what the calling process's own mount namespace promises, as the node role of a rootless node wants it.
// (2) is tried by doing, below each of dirs: a tmpfs is mounted in the namespace and looked for from where a
// HostToContainer and a Bidirectional volume look, and one is mounted as a Bidirectional volume does. (1) is read from the
// propagation of the root: only root of the host can mount there. (3) cannot be in a user namespace of its own
// (mount_namespaces(7)) and is false. reasons say why (2) does not hold; why (1) does not, the host's mounts tell, or whoever cut
// it off. Nothing of a try is left.
//
// Call it from a process whose children have no parent death signal: its threads come and go. Runs in: child.
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
			reasons = append(reasons, fmt.Sprintf("2: a mount below %s does not reach volumes, or theirs not the node", dir))
		}
		g.Inside = g.Inside && holds
	}
	return g, reasons, nil
}

// probeBelow mounts in the caller's namespace and as a Bidirectional volume does.
func probeBelow(parent string, v volumes) (holds bool, err error) {
	dir, err := os.MkdirTemp(parent, "mountns-probe-")
	if err != nil {
		return false, err
	}
	defer func() { err = firstError(err, os.RemoveAll(dir)) }()
	p := probe{dir}
	ours, err := p.on("node", hostView{}, v.slave, v.peer)
	if err != nil {
		return false, err
	}
	theirs, err := p.on("volume", v.peer, hostView{}, v.slave)
	if err != nil {
		return false, err
	}
	return ours[0] && ours[1] && theirs[0] && theirs[1], nil
}

// Within runs fn on a thread in the mount namespace that path (such as /proc/PID/ns/mnt) names. See ProbeGuarantees for which
// processes may call it. Runs in: either, with CAP_SYS_ADMIN over the namespace and CAP_SYS_CHROOT.
func Within(path string, fn func() error) error {
	ns, err := os.Open(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	return in(ns, fn)
}

// MountOf returns the mount that path, links followed, belongs to in the calling thread's namespace: its mount point and its
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
		return "", "", fmt.Errorf("find the mount of %s: none is there", path)
	}
	return m.Mountpoint, m.Optional, nil
}

// DeriveGuarantees tells what holds between two mounts of one place by their propagation, as MountOf returns it: the host's and that
// of the namespace inside. Private tells that the host's passes nothing on. It is pure.
func DeriveGuarantees(host, inside string) (g Guarantees, private bool) {
	r := relation{host: peersOf(host), inside: peersOf(inside)}
	return r.guarantees(), r.host.shared == 0
}

// DaemonNamespace finds the mount namespace of the first process of that name (at most 15 bytes), as a path for Within. Those of
// other user or pid namespaces are of another node. Empty: there is none. Runs in: either, in the namespaces that are looked at.
func DaemonNamespace(name string) (path string, err error) {
	err = eachProcess(func(_ int, dir string) error {
		comm, err := os.ReadFile(filepath.Join(dir, "comm"))
		if err != nil || path != "" || strings.TrimSpace(string(comm)) != name {
			return err
		}
		ours, err := ofThisNode(dir)
		if ours {
			path = filepath.Join(dir, "ns/mnt")
		}
		return err
	})
	return path, err
}
