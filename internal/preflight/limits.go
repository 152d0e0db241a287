package preflight

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
)

// Hard limits of open files. Below filesFail the components do not start.
const filesFail = 1024

func checkOpenFiles(_ context.Context, h *host) []Finding {
	n, text, err := h.hardLimit("Max open files")
	if err != nil {
		return unreadable(err)
	}
	details := map[string]string{"hard": text}
	if n >= hostinfo.OpenFiles {
		return []Finding{pass("hard limit of open files is %s", text).with(details)}
	}
	f := warn("hard limit of open files is %d: each forwarded port uses one, and components need %d", n, hostinfo.OpenFiles)
	if n < filesFail {
		f = fail("hard limit of open files is %d, but the components need at least %d, and %d with many ports", n, filesFail, hostinfo.OpenFiles)
	}
	if h.confined() {
		return []Finding{f.with(details).hint(hostinfo.OuterSettings(hostinfo.OpenFilesInContainer(h.container()))...)}
	}
	return []Finding{f.with(details).hint(h.raiseLimit("nofile", strconv.Itoa(hostinfo.OpenFiles), "NOFILE")...)}
}

// unlimited is the value of hardLimit for a resource without a limit.
const unlimited = math.MaxUint64

// hardLimit returns a hard limit from /proc/self/limits, "TITLE  SOFT  HARD  UNITS", as a number and as text.
func (h *host) hardLimit(title string) (n uint64, text string, err error) {
	const file = "/proc/self/limits"
	b, err := os.ReadFile(h.path(file))
	if err != nil {
		return 0, "", err
	}
	for line := range bytes.Lines(b) {
		rest, ok := strings.CutPrefix(string(line), title)
		f := strings.Fields(rest)
		if !ok || len(f) < 2 {
			continue
		}
		if n, err = strconv.ParseUint(f[1], 10, 64); err != nil {
			n = unlimited
		}
		return n, f[1], nil
	}
	return 0, "", fmt.Errorf("%s: no line %q", file, title)
}

// raiseLimit returns the commands that raise a limit for logins of the account. item is its name in limits.conf(5), and unit that of
// the setting Limit... of systemd.
func (h *host) raiseLimit(item, value, unit string) []string {
	name := "NAME"
	if a, ok, _ := h.account(); ok {
		name = a.Name
		if hostinfo.Quote(name) != name { // limits.conf(5) has no quotes, but ranges of uids
			name = fmt.Sprintf("%[1]d:%[1]d", a.UID)
		}
	}
	return []string{
		addLine("/etc/security/limits.d/rootlessnode.conf", name+" - "+item+" "+value),
		fmt.Sprintf("# then log in again; under systemd, set Limit%[1]s= in the unit or DefaultLimit%[1]s= in user.conf instead", unit),
	}
}

// loginLimit is a hard limit that ends or disturbs components.
type loginLimit struct {
	title, item, unit string
	// least is the value below which they do not start.
	least uint64
	why   string
}

func loginLimits() []loginLimit {
	return []loginLimit{
		{"Max cpu time", "cpu", "CPU", unlimited, "the kernel ends each component after that many seconds of CPU time"},
		{"Max file size", "fsize", "FSIZE", 4 << 30, "images and the database need larger files"},
		{"Max data size", "data", "DATA", 8 << 30, "components cannot allocate enough memory"},
		{"Max address space", "as", "AS", 64 << 30, "components cannot map enough memory"},
	}
}

// checkLoginLimits reports hard limits of the login that the start cannot raise.
func checkLoginLimits(_ context.Context, h *host) []Finding {
	var found []Finding
	for _, l := range loginLimits() {
		n, text, err := h.hardLimit(l.title)
		if err != nil || n >= l.least { // an incomplete list of limits has no limit
			continue
		}
		found = append(found, fail("the login's hard limit %q is %s: %s", strings.ToLower(l.title), text, l.why).hint(
			h.raiseLimit(l.item, "unlimited", l.unit)...))
	}
	return orPass(found, "the login has no limits that disturb components")
}

// inotifyNeeded is the number of inotify instances that the components create while they start.
const inotifyNeeded = 16

func checkInotify(_ context.Context, h *host) []Finding {
	var found []Finding
	details := map[string]string{}
	for _, l := range []struct {
		sysctl, file string
		want         int64
	}{
		{"fs.inotify.max_user_instances", "/proc/sys/fs/inotify/max_user_instances", hostinfo.InotifyInstances},
		{"fs.inotify.max_user_watches", "/proc/sys/fs/inotify/max_user_watches", hostinfo.InotifyWatches},
	} {
		n, err := h.readInt(l.file)
		if err != nil {
			return unreadable(err)
		}
		details[l.sysctl] = strconv.FormatInt(n, 10)
		if n < l.want {
			f := warn("%s is %d: when all are used, programs fail with \"too many open files\"; %d is recommended", l.sysctl, n, l.want).hint(setSysctl(l.sysctl, int(l.want))...)
			f.fix.setup = true
			found = append(found, f.with(details))
		}
	}
	if err := h.probes.Inotify(inotifyNeeded); err != nil && !h.in.Running {
		found = append(found, fail("a start needs %d inotify instances, and the account cannot get that many: %v", inotifyNeeded, err).hint(
			setSysctl("fs.inotify.max_user_instances", 2*hostinfo.InotifyInstances)...))
	}
	return orPass(found, "inotify: %s instances, %s watches per user",
		details["fs.inotify.max_user_instances"], details["fs.inotify.max_user_watches"])
}
