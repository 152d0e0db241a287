package hostinfo

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// Files of ours that the host reads at boot.
const (
	ModulesFile = "/etc/modules-load.d/rootlessnode.conf"
	SysctlFile  = "/etc/sysctl.d/99-rootlessnode.conf"
)

// What the kernel should allow. The inotify numbers are those which kind and others advise; all processes of a uid share
// them.
const (
	InotifyInstances = 512
	InotifyWatches   = 524288
	// UserNamespaces is the usual advice where user.max_user_namespaces is 0.
	UserNamespaces = 28633
	// OpenFiles is the hard limit under which forwarded ports run out: the parent keeps a descriptor for each.
	OpenFiles = 65536
)

// Files of host setup and of the hints to do the same by hand.
const (
	AppArmorDir    = "/etc/apparmor.d"
	AppArmorSysctl = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
	LingerDir      = "/var/lib/systemd/linger"
	SystemdBooted  = "/run/systemd/system"
	// OpenRCBooted is where OpenRC keeps its state while it is what started the host.
	OpenRCBooted = "/run/openrc"
	// ElogindLingerDir is elogind's LingerDir.
	ElogindLingerDir = "/var/lib/elogind/linger"
	TunDevice        = "/dev/net/tun"
	UserRuntimeDirs  = "/run/user"
)

// AppArmorProfile returns path and text of a profile that lets exe, an absolute path without links, make user
// namespaces where kernel.apparmor_restrict_unprivileged_userns is 1, and confines it in nothing. A path that no profile
// can name exactly is an error.
func AppArmorProfile(exe string) (path, text string, err error) {
	attachment, err := appArmorWord(exe)
	if err != nil {
		return "", "", err
	}
	name := strings.Map(func(r rune) rune {
		switch {
		case r == '/':
			return '.'
		case isPlain(r):
			return r
		}
		return '_'
	}, strings.TrimPrefix(exe, "/"))
	return AppArmorDir + "/" + name, fmt.Sprintf(`abi <abi/4.0>,
include <tunables/global>

profile %s %s flags=(unconfined) {
  userns,
}
`, name, attachment), nil
}

// appArmorWord quotes a path for a profile, so that it means exactly this path (apparmor.d(5), "Globbing (AARE)"). How the
// parser reads a backslash or a quote inside quotes depends on its version.
func appArmorWord(path string) (string, error) {
	var b strings.Builder
	for _, r := range path {
		switch {
		case r < ' ' || r == 0x7f || r == '"' || r == '\\' || r == utf8.RuneError:
			return "", fmt.Errorf("path %q cannot be named in an AppArmor profile", path)
		case strings.ContainsRune("?*[]{}^", r):
			b.WriteRune('\\')
		}
		b.WriteRune(r)
	}
	return `"` + b.String() + `"`, nil
}

// InstallFirst are the commands that put the program at exe, whose file or directory an account can replace, where only root
// can, and the one to run from there. arguments are those of the program.
func InstallFirst(exe, arguments string) string {
	const installed = "/usr/local/bin/rootlessnode"
	lines := "# install below /usr/local first, with the components (make install), then run it from there:\n"
	for _, part := range []string{"libexec", "share"} {
		from := filepath.Join(filepath.Dir(filepath.Dir(exe)), part, "rootlessnode")
		if st, err := os.Stat(from); err == nil && st.IsDir() {
			lines += fmt.Sprintf("mkdir -p /usr/local/%[1]s && cp -rT --no-preserve=ownership %[2]s /usr/local/%[1]s/rootlessnode\n", part, Quote(from))
		}
	}
	return lines + "install -D -m 0755 " + Quote(exe) + " " + installed + "\n" + installed + " " + arguments
}

// Quote makes one word for a shell of s.
func Quote(s string) string {
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !isPlain(r) }) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// isPlain tells what means itself to a shell.
func isPlain(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-:=@,+", r)
}

// Elogind tells whether elogind, the logind of hosts without systemd, runs. It keeps its seats where systemd's does, and a
// systemd that was tried in a container leaves that directory behind, so the program must be there too.
func Elogind(root string) bool {
	_, systemd := os.Stat(filepath.Join(root, SystemdBooted))
	_, seats := os.Stat(filepath.Join(root, "/run/systemd/seats"))
	var programs []string
	for _, pattern := range []string{"/lib*/elogind/elogind", "/usr/lib*/elogind/elogind"} {
		found, _ := filepath.Glob(filepath.Join(root, pattern)) // the pattern is right
		programs = append(programs, found...)
	}
	return systemd != nil && seats == nil && len(programs) > 0
}
