package preflight

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
)

// mount is the mount that a path is on.
type mount struct {
	point, fsType, options string
}

// mountOf finds it in mountinfo.
func (h *host) mountOf(path string) (mount, bool) {
	f, err := os.Open(h.path("/proc/self/mountinfo"))
	if err != nil {
		return mount{}, false
	}
	defer func() { _ = f.Close() }()
	infos, err := mountinfo.GetMountsFromReader(f, nil)
	if err != nil {
		return mount{}, false
	}
	m := hostinfo.MountOver(infos, path)
	if m == nil {
		return mount{}, false
	}
	return mount{m.Mountpoint, m.FSType, m.Options}, true
}

// existing is path, or the nearest directory above it that exists.
func existing(path string) string {
	for {
		if _, err := os.Stat(path); err == nil || path == "/" || path == "." {
			return path
		}
		path = filepath.Dir(path)
	}
}

// Guarantees for mounts, as docs/mounts.md numbers them, in what a finding says.
const (
	allMounts   = "host mounts reach the node and its volumes (1), mounts inside reach one another (2), and none of them the host (no 3)"
	innerMounts = "only mounts inside reach one another (2); what the host mounts later does not reach the node (no 1)"
)

// quietFileSystems are the kernel's own, and those of containers and packages: nobody waits for a mount below them.
var quietFileSystems = []string{
	"autofs", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs", "fusectl", "hugetlbfs", "mqueue",
	"nsfs", "overlay", "proc", "pstore", "ramfs", "securityfs", "squashfs", "sysfs", "tmpfs", "tracefs",
}

// checkMounts says which guarantees for mounts can hold here. A mount that the host makes is passed on only by a shared
// mount, and it is the propagation at the start of the node that counts (mount_namespaces(7)).
func checkMounts(_ context.Context, h *host) []Finding {
	f, err := os.Open(h.path("/proc/self/mountinfo"))
	if err != nil {
		return unreadable(err)
	}
	defer func() { _ = f.Close() }() // it was only read
	infos, err := mountinfo.GetMountsFromReader(f, nil)
	if err != nil {
		return []Finding{warn("not checked: read mountinfo: %v", err)}
	}
	if h.cfg.Mounts.Propagation == "rprivate" {
		return []Finding{pass("mounts.propagation is rprivate: %s", innerMounts).with(map[string]string{"holds": "2"})}
	}
	root := false
	var private []string
	for _, m := range infos {
		shared := strings.Contains(" "+m.Optional, " shared:")
		switch {
		case m.Mountpoint == "/":
			root = shared
		case !shared && !slices.Contains(quietFileSystems, m.FSType):
			private = append(private, m.Mountpoint)
		}
	}
	details := map[string]string{"holds": "1 2"}
	if !root {
		details["holds"] = "2"
		if h.confined() {
			// Engines make the root of a container private, and only CAP_SYS_ADMIN could change it; little is mounted later there.
			return []Finding{pass("the container's root is private: %s", innerMounts).with(details)}
		}
		return []Finding{warn("the host's root is private: %s", innerMounts).with(details).hint(
			"# before the node is started:", asRoot("mount --make-rshared /"))}
	}
	if len(private) > 0 {
		details["private"] = strings.Join(private, " ")
		lines := []string{"# before the node is started:"}
		for _, p := range private {
			lines = append(lines, asRoot("mount --make-rshared "+hostinfo.Quote(p)))
		}
		return []Finding{warn("what the host mounts later below %s does not reach the node: those mounts are private", strings.Join(private, ", ")).
			with(details).hint(lines...)}
	}
	return []Finding{pass("%s", allMounts).with(details)}
}
