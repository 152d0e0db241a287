package preflight

import (
	"context"
	"os"
	"strings"

	"github.com/moby/sys/mountinfo"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
)

// coversNothing are the directories of /proc that exist to be mounted upon.
func coversNothing() []string { return []string{"sys/fs/binfmt_misc", "fs/nfsd", "xen"} }

// checkProc looks for a /proc that is whole. The node's pid namespace needs one of its own, and the kernel lets a user
// namespace mount it only where one is visible already of which nothing is covered and that is not read-only
// (mount_too_revealing in fs/namespace.c: the answer is EPERM). Container engines cover parts of /proc.
func checkProc(_ context.Context, h *host) []Finding {
	label, err := os.ReadFile(h.path("/proc/self/attr/current"))
	if err == nil && hostinfo.EngineProfile(string(label)) {
		return []Finding{fail("AppArmor's profile %s of this container forbids to mount a /proc, and all else", strings.Fields(string(label))[0]).hint(
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
		over := coveredIn(m, mounts)
		if len(over) == 0 {
			return []Finding{pass("all of %s can be seen: the node can have one of its own", m.Mountpoint)}
		}
		covered = append(covered, over...)
	}
	if len(covered) == 0 {
		return []Finding{pass("no mount of /proc is listed")} // a host that hides its mounts: the start will tell
	}
	found := fail("parts of /proc are covered or read-only, so the kernel refuses the node a /proc of its own: %s", few(covered))
	found.fix.add(hostinfo.OuterSettings(hostinfo.UnmaskedProc(h.container()))...)
	return []Finding{found.with(map[string]string{"covered": strings.Join(covered, " ")})}
}

// coveredIn lists what is mounted over parts of the mount, and the mount itself if it is read-only.
func coveredIn(m *mountinfo.Info, all []*mountinfo.Info) []string {
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
		for _, e := range coversNothing() {
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

// few shortens a list for a line.
func few(list []string) string {
	const shown = 4
	if len(list) <= shown {
		return strings.Join(list, ", ")
	}
	return strings.Join(list[:shown], ", ") + ", …"
}
