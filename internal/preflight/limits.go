package preflight

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
)

func checkOpenFiles(_ context.Context, h *host) []Finding {
	hard, err := hardOpenFiles(h)
	if err != nil {
		return unreadable(err)
	}
	details := map[string]string{"hard": hard}
	n, err := strconv.ParseUint(hard, 10, 64)
	if err == nil && n < hostinfo.OpenFiles {
		found := warn("hard limit of open files is %d: each forwarded port uses one, and components need %d", n, hostinfo.OpenFiles).with(details)
		if h.confined() {
			return []Finding{found.hint(hostinfo.OuterSettings(hostinfo.OpenFilesInContainer(h.container()))...)}
		}
		name := "NAME"
		if a, ok, _ := h.account(); ok {
			name = a.Name
		}
		return []Finding{found.hint(
			addLine("/etc/security/limits.d/rootlessnode.conf", name+" - nofile "+strconv.Itoa(hostinfo.OpenFiles)),
			"# then log in again; under systemd, set LimitNOFILE= in the unit or DefaultLimitNOFILE= in user.conf instead")}
	}
	return []Finding{pass("hard limit of open files is %s", hard).with(details)}
}

// hardOpenFiles returns the hard limit of open files from /proc/self/limits: "Max open files  SOFT  HARD  files".
func hardOpenFiles(h *host) (string, error) {
	const file, title = "/proc/self/limits", "Max open files"
	b, err := os.ReadFile(h.path(file))
	if err != nil {
		return "", err
	}
	for line := range bytes.Lines(b) {
		if rest, ok := strings.CutPrefix(string(line), title); ok {
			if f := strings.Fields(rest); len(f) >= 2 {
				return f[1], nil
			}
		}
	}
	return "", fmt.Errorf("%s: no line %q", file, title)
}

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
	return orPass(found, "inotify: %s instances, %s watches per user",
		details["fs.inotify.max_user_instances"], details["fs.inotify.max_user_watches"])
}
