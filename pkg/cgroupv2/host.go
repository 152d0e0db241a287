package cgroupv2

import (
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// Host is the host's cgroup v2 tree and the cgroup of this process.
type Host struct {
	// Mount is the mount point of the cgroup2 tree: /sys/fs/cgroup on a unified host, /sys/fs/cgroup/unified on most
	// hybrid hosts.
	Mount string
	// ReadOnly: the tree is mounted read-only, as in an unprivileged container.
	ReadOnly bool
	// Hybrid: v1 hierarchies use controllers too. V1 lists these controllers by their v1 names.
	Hybrid bool
	V1     []string
	// Self is the cgroup of this process, as an absolute path below Mount.
	Self string
}

// SelfDir returns the directory of the cgroup of this process.
func (h Host) SelfDir() string { return filepath.Join(h.Mount, h.Self) }

// DetectHost finds the cgroup2 tree. On a host without one it returns an error of class errdefs.ErrPreflight that says what
// is mounted instead.
//
// Runs in: parent. Inside, the node's tree has a fixed path; see Tree.
func DetectHost(o Options) (Host, error) {
	o = o.withDefaults()
	mi, err := os.Open(o.MountInfo)
	if err != nil {
		return Host{}, fmt.Errorf("detect cgroup2: %w", err)
	}
	defer func() { _ = mi.Close() }()
	v2, v1, err := parseMounts(mi)
	if err != nil {
		return Host{}, fmt.Errorf("detect cgroup2: %s: %w", o.MountInfo, err)
	}
	if len(v2) == 0 {
		return Host{}, noTree(v1)
	}
	text, err := os.ReadFile(o.ProcSelfCgroup)
	if err != nil {
		return Host{}, fmt.Errorf("detect cgroup2: %w", err)
	}
	self, held, err := parseSelf(string(text))
	if err != nil {
		return Host{}, fmt.Errorf("detect cgroup2: %s: %w", o.ProcSelfCgroup, err)
	}
	return selectMount(v2, self, held)
}

// selectMount selects a mount that contains the cgroup self. It prefers mounts at the usual mount points.
func selectMount(v2 []*mountinfo.Info, self string, held []string) (Host, error) {
	best := func(m *mountinfo.Info) int {
		return slices.Index([]string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"}, m.Mountpoint)
	}
	slices.SortStableFunc(v2, func(a, b *mountinfo.Info) int { return best(b) - best(a) })
	for _, m := range v2 {
		if rel, ok := below(m.Root, self); ok {
			ro := slices.Contains(strings.Split(m.Options, ","), "ro")
			return Host{Mount: m.Mountpoint, ReadOnly: ro, Hybrid: len(held) > 0, V1: held, Self: rel}, nil
		}
	}
	err := fmt.Errorf("own cgroup %s is not visible in the cgroup2 tree at %s (which shows %s)", self, v2[0].Mountpoint, v2[0].Root)
	return Host{}, errdefs.Class(errdefs.ErrPreflight, errdefs.WithHint(err,
		"Start from a separate login session, not from another container's cgroup namespace."))
}

// below returns p relative to root, as an absolute path, and whether p is root or below it.
func below(root, p string) (string, bool) {
	if root == "/" {
		return p, p == "/" || !strings.HasPrefix(p, "/..")
	}
	rest, ok := strings.CutPrefix(p, root)
	if !ok || (rest != "" && rest[0] != '/') {
		return "", false
	}
	return path.Join("/", rest), true
}

func parseMounts(r io.Reader) (v2, v1 []*mountinfo.Info, err error) {
	all, err := mountinfo.GetMountsFromReader(r, mountinfo.FSTypeFilter("cgroup2", "cgroup"))
	for _, m := range all {
		if m.FSType == "cgroup2" {
			v2 = append(v2, m)
		} else {
			v1 = append(v1, m)
		}
	}
	return v2, v1, err
}

// parseSelf parses /proc/self/cgroup (cgroups(7)): lines "ID:CONTROLLERS:PATH", with "0::PATH" for cgroup2. held lists the
// controllers of v1 hierarchies; named hierarchies, such as systemd's, have none.
func parseSelf(text string) (self string, held []string, err error) {
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		id, rest, ok := strings.Cut(line, ":")
		controllers, p, ok2 := strings.Cut(rest, ":")
		if _, err := strconv.ParseUint(id, 10, 32); !ok || !ok2 || err != nil {
			return "", nil, fmt.Errorf("line %q is not ID:CONTROLLERS:PATH", line)
		}
		if id == "0" {
			// The kernel appends this mark if the cgroup was removed.
			self = strings.TrimSuffix(p, " (deleted)")
			continue
		}
		for c := range strings.SplitSeq(controllers, ",") {
			if c != "" && !strings.HasPrefix(c, "name=") {
				held = append(held, c)
			}
		}
	}
	if !strings.HasPrefix(self, "/") {
		return "", nil, fmt.Errorf("no line for cgroup v2 (0::PATH)")
	}
	slices.Sort(held)
	return self, held, nil
}

func noTree(v1 []*mountinfo.Info) error {
	what := "no cgroup file system is mounted"
	if len(v1) > 0 {
		var at []string
		for _, m := range v1 {
			at = append(at, m.Mountpoint)
		}
		what = "only cgroup v1 is mounted, at " + strings.Join(at, ", ")
	}
	return errdefs.Preflight("no cgroup v2 tree on this host: %s", what).
		Hint("# Boot with the kernel argument systemd.unified_cgroup_hierarchy=1, or have root mount a cgroup2 tree:",
			"sudo mkdir -p /sys/fs/cgroup/unified && sudo mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified")
}

// v2Name returns the v2 name of a v1 controller, or "" if it has no v2 counterpart.
func v2Name(v1 string) string {
	switch v1 {
	case "blkio":
		return "io"
	case "cpuacct", "devices", "freezer", "net_cls", "net_prio":
		return ""
	}
	return v1
}
