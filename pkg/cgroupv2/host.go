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

// Host is the host's cgroup v2 tree and the place of this process in it.
type Host struct {
	// Mount is where the cgroup2 tree is mounted: /sys/fs/cgroup on a unified host, /sys/fs/cgroup/unified on most hybrid
	// ones.
	Mount string
	// ReadOnly tells that it is mounted read-only, as in an unprivileged container.
	ReadOnly bool
	// Hybrid tells that v1 hierarchies hold controllers too; V1 are their names, by their v1 names.
	Hybrid bool
	V1     []string
	// Self is the process' own cgroup, as an absolute path inside Mount.
	Self string
}

// SelfDir returns the directory of the process' own cgroup.
func (h Host) SelfDir() string { return filepath.Join(h.Mount, h.Self) }

// DetectHost finds the cgroup2 tree. The error for a host without one is an errdefs.ErrPreflight that says what is
// mounted instead.
//
// Runs in: parent (inside, the node's own tree is at a fixed place; see Tree).
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
	return pick(v2, self, held)
}

// pick takes the mount that shows our own cgroup; among several, the one at the usual place.
func pick(v2 []*mountinfo.Info, self string, held []string) (Host, error) {
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
		"Start from a login of its own rather than from another container's cgroup namespace."))
}

// below returns the rest of p below root, as an absolute path.
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

// parseSelf reads /proc/self/cgroup (cgroups(7)): lines "ID:CONTROLLERS:PATH", the one of cgroup2 being "0::PATH".
// held are the controllers of v1 hierarchies; named ones, such as systemd's, control nothing.
func parseSelf(text string) (self string, held []string, err error) {
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		id, rest, ok := strings.Cut(line, ":")
		controllers, p, ok2 := strings.Cut(rest, ":")
		if _, err := strconv.ParseUint(id, 10, 32); !ok || !ok2 || err != nil {
			return "", nil, fmt.Errorf("line %q is not ID:CONTROLLERS:PATH", line)
		}
		if id == "0" {
			// A process whose cgroup was removed keeps the path with this mark.
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
	return errdefs.Class(errdefs.ErrPreflight, errdefs.WithHint(
		fmt.Errorf("no cgroup v2 tree on this host: %s", what),
		"Boot with the kernel argument systemd.unified_cgroup_hierarchy=1, or have root mount a cgroup2 tree:\n"+
			"  sudo mkdir -p /sys/fs/cgroup/unified && sudo mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified"))
}

// v2Name turns a v1 controller's name into the v2 one that it keeps away, "" for those without a v2 counterpart.
func v2Name(v1 string) string {
	switch v1 {
	case "blkio":
		return "io"
	case "cpuacct", "devices", "freezer", "net_cls", "net_prio":
		return ""
	}
	return v1
}
