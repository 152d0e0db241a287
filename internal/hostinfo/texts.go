package hostinfo

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// Files that host setup writes and that the host reads at boot.
const (
	ModulesFile = "/etc/modules-load.d/rootlessnode.conf"
	SysctlFile  = "/etc/sysctl.d/99-rootlessnode.conf"
)

// Recommended limits of the kernel. The inotify values are also recommended by kind and others; all processes of a uid share
// them.
const (
	InotifyInstances = 512
	InotifyWatches   = 524288
	// UserNamespaces is the usually recommended value if user.max_user_namespaces is 0.
	UserNamespaces = 28633
	// Namespaces is the value for the other quotas of namespaces if they are below FewNamespaces, which is enough for 110 pods.
	Namespaces    = UserNamespaces
	FewNamespaces = 1024
	// OpenFiles is the recommended hard limit of open files. The parent needs a descriptor for each forwarded port.
	OpenFiles = 65536
)

// NamespaceKinds returns the kinds of namespaces that nodes and their pods use, as in the sysctls user.max_KIND_namespaces.
func NamespaceKinds() []string { return []string{"user", "mnt", "net", "pid", "ipc", "uts", "cgroup"} }

// Files of the host that host setup changes or checks.
const (
	AppArmorDir    = "/etc/apparmor.d"
	AppArmorSysctl = "/proc/sys/kernel/apparmor_restrict_unprivileged_userns"
	LingerDir      = "/var/lib/systemd/linger"
	SystemdBooted  = "/run/systemd/system"
	// OpenRCBooted is the state directory of OpenRC, which exists if OpenRC booted the host.
	OpenRCBooted = "/run/openrc"
	// ElogindLingerDir is the LingerDir of elogind.
	ElogindLingerDir = "/var/lib/elogind/linger"
	TunDevice        = "/dev/net/tun"
	UserRuntimeDirs  = "/run/user"
)

// LingerFile returns the name of the file in LingerDir for an account. logind escapes the name like a string of C.
func LingerFile(account string) string {
	var b strings.Builder
	for _, c := range []byte(account) {
		switch {
		case c == '\\' || c == '"' || c == '\'':
			b.WriteString("\\" + string(c))
		case c < ' ' || c >= 0x7f:
			fmt.Fprintf(&b, "\\%03o", c)
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// AppArmorProfile returns the path and text of a profile that lets exe, an absolute path without symbolic links, create user
// namespaces if kernel.apparmor_restrict_unprivileged_userns is 1, without other restrictions. It returns an error if a profile
// cannot match the path exactly.
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

// appArmorWord quotes a path for a profile, so that it matches only this path (apparmor.d(5), "Globbing (AARE)"). It rejects
// backslashes and quotes, because their meaning inside quotes depends on the version of the parser.
func appArmorWord(path string) (string, error) {
	var b strings.Builder
	for _, r := range path {
		switch {
		case r < ' ' || r == 0x7f || r == '"' || r == '\\' || r == utf8.RuneError:
			return "", fmt.Errorf("path %q cannot be expressed in an AppArmor profile", path)
		case strings.ContainsRune("?*[]{}^", r):
			b.WriteRune('\\')
		}
		b.WriteRune(r)
	}
	return `"` + b.String() + `"`, nil
}

// Installed is the path of the program after InstallFirst.
const Installed = "/usr/local/bin/rootlessnode"

// InstallFirst returns the commands that install the program exe below /usr/local. It is for programs that an account can replace.
func InstallFirst(exe string) []string {
	lines := []string{"# install below /usr/local first, with the components (make install), then run it from there:"}
	for _, part := range []string{"libexec", "share"} {
		from := filepath.Join(filepath.Dir(filepath.Dir(exe)), part, "rootlessnode")
		if st, err := os.Stat(from); err == nil && st.IsDir() {
			lines = append(lines,
				fmt.Sprintf("mkdir -p /usr/local/%[1]s && cp -rT --no-preserve=ownership %[2]s /usr/local/%[1]s/rootlessnode", part, Quote(from)))
		}
	}
	return append(lines, "install -D -m 0755 "+Quote(exe)+" "+Installed)
}

// Quote quotes s as one word of a shell.
func Quote(s string) string {
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !isPlain(r) }) {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// isPlain reports whether r has no special meaning in a shell.
func isPlain(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-:=@,+", r)
}

// Elogind reports whether elogind, the logind for hosts without systemd, is in use. The seats directory is not sufficient, because
// systemd uses the same one and may have left it there. Therefore the program must be installed too.
func Elogind(root string) bool {
	_, systemd := os.Stat(filepath.Join(root, SystemdBooted))
	_, seats := os.Stat(filepath.Join(root, "/run/systemd/seats"))
	var programs []string
	for _, pattern := range []string{"/lib*/elogind/elogind", "/usr/lib*/elogind/elogind"} {
		found, _ := filepath.Glob(filepath.Join(root, pattern)) // the pattern is valid
		programs = append(programs, found...)
	}
	return systemd != nil && seats == nil && len(programs) > 0
}
