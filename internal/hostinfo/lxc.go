package hostinfo

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// LXCUsernetFile says who may have interfaces on which bridge (lxc-usernet(5)).
const LXCUsernetFile = "/etc/lxc/lxc-usernet"

// LXCDirs are where distributions keep lxc-user-nic and lxc-net, which are not meant to be typed.
func LXCDirs() []string {
	return []string{"/usr/libexec/lxc", "/usr/lib/x86_64-linux-gnu/lxc", "/usr/lib/aarch64-linux-gnu/lxc", "/usr/lib/lxc"}
}

// LXCDHCPPidFile is where lxc-net keeps the process id of the DHCP server of its bridge.
const LXCDHCPPidFile = "/run/lxc/dnsmasq.pid"

// lxcNetUp is the file by which lxc-net knows that it was started. It makes it after the server has made its own, and removes it last.
const lxcNetUp = "/run/lxc/network_up"

// LXCBridgeFault says why interfaces on the bridge would get no address, and nil if nothing is known against it: there
// is no such bridge, or it is lxc-net's and its DHCP server ended, which takes neither the bridge nor the process id
// file away; somebody who cleans up may have taken the latter. root stands before the paths.
func LXCBridgeFault(root, bridge string) error {
	if _, err := os.Stat(filepath.Join(root, "/sys/class/net", bridge, "bridge")); err != nil {
		return fmt.Errorf("the host has no bridge %s", bridge)
	}
	if bridge != lxcNetBridge(root) {
		return nil // whoever made the bridge serves it in a way of his own
	}
	b, err := os.ReadFile(filepath.Join(root, LXCDHCPPidFile))
	_, notUp := os.Stat(filepath.Join(root, lxcNetUp))
	if errors.Is(err, os.ErrNotExist) && notUp == nil {
		return fmt.Errorf("the DHCP server of the bridge %s is gone (%s is there, %s is not)", bridge, lxcNetUp, LXCDHCPPidFile)
	}
	pid, syntax := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || syntax != nil || pid <= 0 {
		return nil // as above, under lxc-net's name
	}
	comm, err := os.ReadFile(filepath.Join(root, "/proc", strconv.Itoa(pid), "comm"))
	if err != nil && !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) { // hidepid hides it
		return nil
	}
	if strings.TrimSpace(string(comm)) != "dnsmasq" {
		return fmt.Errorf("the DHCP server of the bridge %s has ended (dnsmasq, process %d of %s)", bridge, pid, LXCDHCPPidFile)
	}
	return nil
}

// lxcNetBridge is the bridge that lxc-net makes: what its files say, which a shell reads, the last one for good.
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
