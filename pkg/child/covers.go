package child

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/noderole"
	"github.com/rootlessnode/rootlessnode/pkg/copyup"
)

// rewritten returns the files in persistent directories that the node or RootlessKit writes at each start.
func rewritten() []string {
	return []string{
		"/etc/hosts", "/etc/resolv.conf", noderole.ProtocolsFile,
		layout.InsideContainersConf + "/storage.conf", layout.InsideContainersConf + "/policy.json",
	}
}

// covers returns the directories and sockets of the host through which programs of the user and of the system accept
// requests: D-Bus and systemd, container engines, key agents, sound and display servers. A hostPath volume must not
// reach them. In the runtime directory only the node's own files and the paths in keep stay visible.
func covers(rt layout.Runtime, keep []string) []copyup.Cover {
	keep = slices.DeleteFunc(slices.Clone(keep), func(name string) bool { return !filepath.IsAbs(name) })
	list := []copyup.Cover{{Path: "/run/user", Keep: keep}, {Path: "/run/dbus", Keep: keep}}
	if dir := filepath.Dir(filepath.Dir(rt.Dir)); coverable(dir, keep) { // XDG_RUNTIME_DIR, which may be elsewhere
		list = append(list, copyup.Cover{Path: dir, Keep: keep})
	}
	for _, socket := range []string{busSocket(os.Getenv("DBUS_SESSION_BUS_ADDRESS")), os.Getenv("SSH_AUTH_SOCK")} {
		if info, err := os.Stat(socket); err == nil && info.Mode()&fs.ModeSocket != 0 {
			list = append(list, copyup.Cover{Path: socket})
		}
	}
	return list
}

// coverable reports whether dir is a runtime directory that only the user can access. A shared directory such as /tmp
// cannot be covered, nor a directory that is also the home or data dir.
func coverable(dir string, keep []string) bool {
	info, err := os.Stat(dir)
	return err == nil && info.IsDir() && info.Mode().Perm()&0o077 == 0 && !slices.Contains(keep, dir)
}

// busSocket returns the path of the socket in a D-Bus address (D-Bus specification, "Server addresses"), or "" if it
// has none.
func busSocket(address string) string {
	for one := range strings.SplitSeq(address, ";") {
		transport, options, _ := strings.Cut(one, ":")
		for option := range strings.SplitSeq(options, ",") {
			if path, ok := strings.CutPrefix(option, "path="); ok && transport == "unix" {
				return path
			}
		}
	}
	return ""
}
