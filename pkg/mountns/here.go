package mountns

import (
	"fmt"
	"os"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// TryHere finds out what the calling process's own mount namespace promises, as the node role of a rootless node wants it.
// (2) is tried by doing, below each of dirs: a tmpfs is mounted in the namespace and looked for from where a
// HostToContainer and a Bidirectional volume look, and one is mounted as a Bidirectional volume does. (1) is read from the
// propagation of the root: only root of the host can mount there. (3) cannot be in a user namespace of its own
// (mount_namespaces(7)) and is false. Each promise that does not hold has a reason. Nothing of a try is left.
//
// Call it from a process whose children have no parent death signal: its threads come and go. Runs in: child.
func TryHere(dirs ...string) (g Guarantees, reasons []string, err error) {
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return g, nil, fmt.Errorf("read the mounts: %w", err)
	}
	root := mountOver(mounts, "/")
	g.HostToInside = root != nil && peersOf(root.Optional).master != 0
	if !g.HostToInside {
		reasons = append(reasons, "1: the root inside receives nothing from the host's")
	}
	g.Inside = true
	for _, dir := range dirs {
		holds, err := tryBelow(dir)
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

func tryBelow(parent string) (holds bool, err error) {
	dir, err := os.MkdirTemp(parent, "mountns-probe-")
	if err != nil {
		return false, err
	}
	defer func() { err = firstError(err, os.RemoveAll(dir)) }()
	ns, err := os.Open(threadSelf + "/ns/mnt")
	if err != nil {
		return false, err
	}
	defer ns.Close()
	volume, err := joinVolume(ns, unix.MS_SLAVE)
	if err != nil {
		return false, err
	}
	defer volume.stop()
	both, err := joinVolume(ns, 0)
	if err != nil {
		return false, err
	}
	defer both.stop()
	p := probe{dir}
	ours, err := p.on("node", hostView{}, volume, both)
	if err != nil {
		return false, err
	}
	theirs, err := p.on("volume", both, hostView{}, volume)
	if err != nil {
		return false, err
	}
	return ours[0] && ours[1] && theirs[0] && theirs[1], nil
}
