package preflight

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/trial"
)

// mount is the mount that a path is on.
type mount struct {
	point, fsType, options string
}

// mountOf returns the mount that path is on, from mountinfo.
func mountOf(h *host, path string) (mount, bool) {
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

// existing returns path, or its nearest parent directory that exists.
func existing(path string) string {
	for {
		if _, err := os.Stat(path); err == nil || path == "/" || path == "." {
			return path
		}
		path = filepath.Dir(path)
	}
}

// Messages about the guarantees for mounts. The numbers are those of docs/mounts.md.
const (
	allMounts   = "mounts of the host are visible in the node and its volumes (1), mounts made in the node are visible to its pods (2), but not to the host (no 3)"
	innerMounts = "only mounts made in the node are visible to its pods (2); later mounts of the host are not visible in the node (no 1)"
)

// ignoredFileSystems are those of the kernel, of containers and of packages, below which no relevant host mounts appear.
var ignoredFileSystems = []string{
	"autofs", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs", "fusectl", "hugetlbfs", "mqueue",
	"nsfs", "overlay", "proc", "pstore", "ramfs", "securityfs", "squashfs", "sysfs", "tmpfs", "tracefs",
}

// checkMounts reports which guarantees for mounts can hold on this host. A host mount propagates to the node only if its parent
// mount is shared when the node starts (mount_namespaces(7)).
func checkMounts(ctx context.Context, h *host) []Finding {
	f, err := os.Open(h.path("/proc/self/mountinfo"))
	if err != nil {
		return unreadable(err)
	}
	defer func() { _ = f.Close() }()
	infos, err := mountinfo.GetMountsFromReader(f, nil)
	if err != nil {
		return []Finding{warn("not checked: read mountinfo: %v", err)}
	}
	if fault, ok := h.tried(ctx).fault(trial.StepPropagation); ok {
		return []Finding{fail("the node cannot change the propagation of its mounts: %v", withoutPath(fault)).hint(
			"# the root directory must be a mount point: start outside of a chroot")}
	}
	if found := copiedUp(h); len(found) > 0 {
		return found
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
		case !shared && !slices.Contains(ignoredFileSystems, m.FSType):
			private = append(private, m.Mountpoint)
		}
	}
	details := map[string]string{"holds": "1 2"}
	if !root {
		details["holds"] = "2"
		if h.confined() {
			// Engines make the root mount of a container private. Changing it needs CAP_SYS_ADMIN, and later mounts are rare.
			return []Finding{pass("the container's root mount is private: %s", innerMounts).with(details)}
		}
		return []Finding{warn("the host's root mount is private: %s", innerMounts).with(details).hint(
			"# before you start the node:", asRoot("mount --make-rshared /"))}
	}
	if len(private) > 0 {
		details["private"] = strings.Join(private, " ")
		lines := []string{"# before you start the node:"}
		for _, p := range private {
			lines = append(lines, asRoot("mount --make-rshared "+hostinfo.Quote(p)))
		}
		return []Finding{warn("later mounts of the host below %s are not visible in the node, because these mounts are private", strings.Join(private, ", ")).
			with(details).hint(lines...)}
	}
	return []Finding{pass("%s", allMounts).with(details)}
}

// copiedUp returns a failure for each element of mounts.copyUp that cannot be copied up.
func copiedUp(h *host) (found []Finding) {
	for _, dir := range h.cfg.Mounts.CopyUp {
		st, err := os.Stat(h.path(dir))
		switch {
		case errors.Is(err, os.ErrNotExist): // it is skipped
		case err != nil:
			found = append(found, fail("mounts.copyUp: %s: %v", dir, errors.Unwrap(err)).hint("# remove it from mounts.copyUp"))
		case !st.IsDir():
			found = append(found, fail("mounts.copyUp: %s is not a directory", dir).hint("# remove it from mounts.copyUp"))
		case unix.Access(h.path(dir), unix.R_OK|unix.X_OK) != nil:
			found = append(found, fail("mounts.copyUp: %s cannot be listed, so its entries cannot be linked inside: mode %04o", dir, st.Mode().Perm()).hint(
				asRoot("chmod a+rx "+hostinfo.Quote(dir))))
		}
	}
	return found
}
