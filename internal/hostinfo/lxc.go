package hostinfo

import (
	"bytes"
	"strconv"
	"strings"
)

// LXCUsernetFile says who may have interfaces on which bridge (lxc-usernet(5)).
const LXCUsernetFile = "/etc/lxc/lxc-usernet"

// LXCDirs are where distributions keep lxc-user-nic and lxc-net, which are not meant to be typed.
func LXCDirs() []string {
	return []string{"/usr/libexec/lxc", "/usr/lib/x86_64-linux-gnu/lxc", "/usr/lib/aarch64-linux-gnu/lxc", "/usr/lib/lxc"}
}

// LXCUsernetRow is one permission: Owner, an account or @GROUP, may have Count interfaces of Type on Bridge.
type LXCUsernetRow struct {
	Owner, Type, Bridge string
	Count               int
}

// ParseLXCUsernet returns the rows of lxc-usernet(5). Lines that are none are passed over, as lxc-user-nic does.
func ParseLXCUsernet(b []byte) []LXCUsernetRow {
	var rows []LXCUsernetRow
	for line := range bytes.Lines(b) {
		text, _, _ := strings.Cut(string(line), "#")
		f := strings.Fields(text)
		if len(f) != 4 {
			continue
		}
		n, err := strconv.Atoi(f[3])
		if err != nil || n < 0 {
			continue
		}
		rows = append(rows, LXCUsernetRow{Owner: f[0], Type: f[1], Bridge: f[2], Count: n})
	}
	return rows
}

// IsInterfaceName tells whether s can be the name of a network interface and is harmless in a file and a command: the
// kernel forbids less.
func IsInterfaceName(s string) bool {
	const maxLen = 15 // IFNAMSIZ of the kernel less the NUL
	if s == "" || len(s) > maxLen || s == "." || s == ".." || s[0] == '-' {
		return false
	}
	return !strings.ContainsFunc(s, func(r rune) bool {
		letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		return !letter && (r < '0' || r > '9') && !strings.ContainsRune("._-", r)
	})
}
