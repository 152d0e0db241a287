package preflight

import (
	"context"
	"os"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/trial"
)

// emptyProcDirs returns the directories of /proc that are only mount points.
func emptyProcDirs() []string { return []string{"sys/fs/binfmt_misc", "fs/nfsd", "xen"} }

// checkProc checks for a /proc that is fully visible. The node's pid namespace needs its own /proc, and the kernel lets a user
// namespace mount one only if a writable /proc without covered parts is already visible (mount_too_revealing in
// fs/namespace.c returns EPERM otherwise). Container engines cover parts of /proc.
func checkProc(ctx context.Context, h *host) []Finding {
	label, err := os.ReadFile(h.path("/proc/self/attr/current"))
	if err == nil && hostinfo.EngineProfile(string(label)) {
		return []Finding{fail("the AppArmor profile %s of this container forbids mounting /proc, and all other mounts", strings.Fields(string(label))[0]).hint(
			hostinfo.OuterSettings(hostinfo.NoAppArmor(h.container()))...)}
	}
	f, err := os.Open(h.path("/proc/self/mountinfo"))
	if err != nil {
		return unreadable(err)
	}
	defer func() { _ = f.Close() }()
	mounts, err := mountinfo.GetMountsFromReader(f, nil)
	if err != nil {
		return unreadable(err)
	}
	var covered []string
	for _, m := range mounts {
		if m.FSType != "proc" || m.Root != "/" {
			continue
		}
		over := coveredPaths(m, mounts)
		if len(over) == 0 {
			return mountsProc(ctx, h, "%s is fully visible: the node can mount its own /proc", m.Mountpoint)
		}
		covered = append(covered, over...)
	}
	if len(covered) == 0 {
		return mountsProc(ctx, h, "no /proc mount is listed in mountinfo") // this host hides its mounts
	}
	found := fail("parts of /proc are covered or read-only, so the kernel does not let the node mount its own /proc: %s", abbreviate(covered))
	found.fix.add(hostinfo.OuterSettings(hostinfo.UnmaskedProc(h.container()))...)
	return []Finding{found.with(map[string]string{"covered": strings.Join(covered, " ")})}
}

// mountsProc returns the failure to mount /proc, or else a finding of level pass.
func mountsProc(ctx context.Context, h *host, format string, args ...any) []Finding {
	if fault, ok := h.tried(ctx).fault(trial.StepProc); ok {
		return []Finding{fail("the kernel does not let the node mount its own /proc: %v", withoutPath(fault))}
	}
	return []Finding{pass(format, args...)}
}

// coveredPaths returns the mount points that cover parts of the mount m, and m itself if it is read-only.
func coveredPaths(m *mountinfo.Info, all []*mountinfo.Info) []string {
	var out []string
	if hasOption(m.Options, "ro") {
		out = append(out, m.Mountpoint)
	}
	for _, other := range all {
		rest, below := strings.CutPrefix(other.Mountpoint, strings.TrimSuffix(m.Mountpoint, "/")+"/")
		if !below || other.Parent != m.ID {
			continue
		}
		empty := false
		for _, e := range emptyProcDirs() {
			empty = empty || rest == e
		}
		if !empty {
			out = append(out, other.Mountpoint)
		}
	}
	return out
}

func hasOption(options, name string) bool {
	for o := range strings.SplitSeq(options, ",") {
		if o == name {
			return true
		}
	}
	return false
}

// abbreviate joins at most the first few elements of list.
func abbreviate(list []string) string {
	const shown = 4
	if len(list) <= shown {
		return strings.Join(list, ", ")
	}
	return strings.Join(list[:shown], ", ") + ", …"
}
