package child

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rootlessnode/rootlessnode/pkg/copyup"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

// rewritten are the files on persistent directories that the node, or RootlessKit, writes at each start.
func rewritten() []string {
	return []string{
		"/etc/hosts", "/etc/resolv.conf", protocolsFile,
		layout.InsideContainersConf + "/storage.conf", layout.InsideContainersConf + "/policy.json",
	}
}

// covers are the places of the host where programs of the account and of the system take orders from the account: D-Bus and
// systemd, container engines, agents for keys, sound, displays. A hostPath volume must not reach them. Of the runtime
// directory only what the node itself needs stays, and whatever else of keep lies in it.
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

// coverable reports whether a directory is a runtime directory as it should be, the account's alone. One that others use too,
// such as /tmp, or that is the home or the data dir at once, cannot be covered.
func coverable(dir string, keep []string) bool {
	info, err := os.Stat(dir)
	return err == nil && info.IsDir() && info.Mode().Perm()&0o077 == 0 && !slices.Contains(keep, dir)
}

// busSocket returns the path of the socket in a D-Bus address (D-Bus specification, "Server addresses"), if it has one.
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
