package hostinfo

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/proc"
)

// LXCUsernetFile lists the accounts that may have interfaces on bridges (lxc-usernet(5)).
const LXCUsernetFile = "/etc/lxc/lxc-usernet"

// LXCDirs returns the directories in which distributions install lxc-user-nic and lxc-net. They are not on PATH.
func LXCDirs() []string {
	return []string{"/usr/libexec/lxc", "/usr/lib/x86_64-linux-gnu/lxc", "/usr/lib/aarch64-linux-gnu/lxc", "/usr/lib/lxc"}
}

// LXCDHCPPidFile is the pid file of the DHCP server of lxc-net's bridge.
const LXCDHCPPidFile = "/run/lxc/dnsmasq.pid"

// lxcNetUp is the file that marks lxc-net as started. lxc-net creates it after the pid file of the DHCP server exists, and removes
// it last.
const lxcNetUp = "/run/lxc/network_up"

// LXCBridgeFault returns why interfaces on the bridge would get no address: the bridge does not exist, or it is lxc-net's bridge
// and its DHCP server is not running. When the server ends, the bridge and usually the pid file remain, although the pid file may
// have been removed too. It returns nil if no fault is found. root is prepended to the paths.
func LXCBridgeFault(root, bridge string) error {
	if _, err := os.Stat(filepath.Join(root, "/sys/class/net", bridge, "bridge")); err != nil {
		return fmt.Errorf("the host has no bridge %s", bridge)
	}
	if bridge != lxcNetBridge(root) {
		return nil // lxc-net does not manage this bridge
	}
	b, err := os.ReadFile(filepath.Join(root, LXCDHCPPidFile))
	_, notUp := os.Stat(filepath.Join(root, lxcNetUp))
	if errors.Is(err, os.ErrNotExist) && notUp == nil {
		return fmt.Errorf("the DHCP server of the bridge %s is not running (%s exists, but %s does not)", bridge, lxcNetUp, LXCDHCPPidFile)
	}
	pid, syntax := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || syntax != nil || pid <= 0 {
		return nil // no usable pid file: lxc-net does not run its DHCP server
	}
	name, err := proc.FS(filepath.Join(root, "/proc")).Name(pid)
	if err != nil && proc.Exists(pid) { // hidepid hides it
		return nil
	}
	if name != "dnsmasq" {
		return fmt.Errorf("the DHCP server of the bridge %s is not running (dnsmasq, pid %d in %s)", bridge, pid, LXCDHCPPidFile)
	}
	return nil
}

// lxcNetBridge returns the bridge that lxc-net creates. Its configuration files are sourced by a shell, so the last assignment wins.
func lxcNetBridge(root string) string {
	bridge := "lxcbr0"
	for _, file := range []string{"/etc/default/lxc-net", "/etc/default/lxc"} {
		b, _ := os.ReadFile(filepath.Join(root, file))
		for line := range bytes.Lines(b) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(string(line)), "LXC_BRIDGE="); ok {
				bridge = strings.Trim(v, `"'`)
			}
		}
	}
	return bridge
}

// LXCUsernetRow is one permission: Owner, which is an account or @GROUP, may have Count interfaces of Type on Bridge.
type LXCUsernetRow struct {
	Owner, Type, Bridge string
	Count               int
}

// ParseLXCUsernet returns the rows of a file in the format of lxc-usernet(5). It skips invalid lines, as lxc-user-nic does.
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

// IsInterfaceName reports whether s is a valid name of a network interface that is also safe in files and commands. It is stricter
// than the kernel.
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
