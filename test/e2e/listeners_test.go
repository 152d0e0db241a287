package e2e

import (
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/docs"
)

// listener is a row of the table of listeners in docs/security.md, or a socket of a running node in the same form.
type listener struct {
	side     string // "host" or "node": the network namespace
	endpoint string // "tcp ADDRESS:PORT", "udp ADDRESS:PORT" or "unix PATH"
	process  string
	always   bool // in the table: every node has it
}

func (l listener) String() string { return l.side + " | " + l.endpoint + " | " + l.process }

// documentedListeners reads the rows of the tables below the heading "Listeners" of docs/security.md: side, endpoint, process, when.
func documentedListeners(t *testing.T) []listener {
	t.Helper()
	page, err := docs.Page("security.md")
	assert.NilError(t, err)
	_, section, found := strings.Cut(page, "\n## Listeners\n")
	assert.Assert(t, found, "docs/security.md has no section Listeners")
	section, _, _ = strings.Cut(section, "\n## ")
	var rows []listener
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) < 4 || !strings.Contains(cells[1], "`") {
			continue
		}
		for i := range cells {
			cells[i] = strings.Trim(strings.TrimSpace(cells[i]), "`")
		}
		rows = append(rows, listener{cells[0], cells[1], cells[2], cells[3] == "always"})
	}
	assert.Assert(t, len(rows) > 10, "docs/security.md lists only %v", rows)
	return rows
}

// covers reports whether a row of the table describes the listener. A * in the endpoint matches anything but a slash.
func (l listener) covers(found listener) bool {
	matched, err := path.Match(strings.ReplaceAll(l.endpoint, "[", `\[`), found.endpoint)
	return err == nil && matched && l.side == found.side && l.process == found.process
}

// socketOwners maps the inodes of the sockets that processes have open to the processes' names.
type socketOwners map[string]string

// runningListeners returns every listening TCP and unix socket and every unconnected UDP socket of the node's own processes in
// the host's and in the node's network namespace. Sockets of the kernel in the node's namespace (vxlan) have the process
// "kernel". Pods have network namespaces of their own; a process of a pod in the node's namespace is reported like any other.
func (n *testNode) runningListeners() []listener {
	n.t.Helper()
	s := n.status()
	host, err := os.Readlink("/proc/self/ns/net")
	assert.NilError(n.t, err)
	owners := map[string]socketOwners{"host": {}, "node": {}}
	read := map[string]string{} // a process whose /proc entry shows the side's sockets
	for _, p := range processes(n.name) {
		pid, command, _ := strings.Cut(p, " ")
		dir := filepath.Join("/proc", pid)
		side := "node"
		switch net, err := os.Readlink(filepath.Join(dir, "ns", "net")); {
		case err != nil:
			continue // it has ended
		case net == host:
			side = "host"
		case net != nodeNetwork(n, s.ChildPID):
			continue // of a pod
		}
		read[side] = dir
		owners[side].add(dir, processName(dir, command))
	}
	found := map[listener]bool{}
	replace := strings.NewReplacer(s.RuntimeDir+"/", "RUN/")
	for side, dir := range read {
		for _, protocol := range []string{"tcp", "tcp6", "udp", "udp6"} {
			for _, l := range internetSockets(n.t, filepath.Join(dir, "net", protocol), protocol, owners[side], side == "node") {
				l.side = side
				found[n.named(l, s.Network.Address)] = true
			}
		}
		for _, l := range unixSockets(n.t, filepath.Join(dir, "net", "unix"), owners[side]) {
			l.side, l.endpoint = side, replace.Replace(l.endpoint)
			found[l] = true
		}
	}
	return slices.SortedFunc(maps.Keys(found), func(a, b listener) int { return strings.Compare(a.String(), b.String()) })
}

// nodeNetwork returns the node's network namespace. childPID is the host's pid of the child.
func nodeNetwork(n *testNode, childPID int) string {
	n.t.Helper()
	net, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", childPID))
	assert.NilError(n.t, err)
	return net
}

// processName returns the base name of a command line's program. An execution of rootlessnode is named by its cgroup leaf
// (parent, child, node); the guard lives outside of the node's cgroup.
func processName(dir, command string) string {
	program, _, _ := strings.Cut(command, " ")
	switch name := filepath.Base(program); name {
	case "rootlessnode", "exe":
		cgroups, _ := os.ReadFile(filepath.Join(dir, "cgroup")) // the process may have ended
		_, unified, _ := strings.Cut(string(cgroups), "0::")
		return path.Base(strings.TrimSpace(unified))
	case "rootlessnode:":
		return "guard"
	default:
		return name
	}
}

func (o socketOwners) add(dir, process string) {
	descriptors, _ := os.ReadDir(filepath.Join(dir, "fd")) // the process may have ended
	for _, d := range descriptors {
		target, _ := os.Readlink(filepath.Join(dir, "fd", d.Name()))
		if inode, ok := strings.CutPrefix(target, "socket:["); ok {
			o[strings.TrimSuffix(inode, "]")] = process
		}
	}
}

// named replaces values that differ between runs: the API server's port and forwarded node ports on the host, the tap's address and
// ports that the kernel chose.
func (n *testNode) named(l listener, tap string) listener {
	n.t.Helper()
	protocol, rest, _ := strings.Cut(l.endpoint, " ")
	at, err := netip.ParseAddrPort(rest)
	assert.NilError(n.t, err)
	address, port := at.Addr().String(), strconv.Itoa(int(at.Port()))
	if strings.HasPrefix(address, "::ffff:") || at.Addr().Is6() {
		address = "[" + address + "]"
	}
	if address == tap {
		address = "TAP"
	}
	switch ephemeral, _ := ephemeralPorts(); {
	case l.side == "host" && slices.Contains(n.args, "api.port="+port):
		port = "API"
	case l.side == "host" && at.Port() >= 30000 && at.Port() < 32768:
		port = "NODEPORT"
	case at.Port() >= ephemeral:
		port = "EPHEMERAL"
	}
	l.endpoint = protocol + " " + address + ":" + port
	return l
}

// ephemeralPorts returns the range from which the kernel chooses ports.
func ephemeralPorts() (low, high uint16) {
	b, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err == nil {
		_, err = fmt.Sscan(string(b), &low, &high)
	}
	if err != nil {
		return 32768, 60999
	}
	return low, high
}

// internetSockets reads a file of /proc/PID/net and returns the sockets of owners, and with kernel those that no process has. States
// are those of include/net/tcp_states.h: 0A listens, 07 is a UDP socket without a peer.
func internetSockets(t *testing.T, file, protocol string, owners socketOwners, kernel bool) []listener {
	t.Helper()
	b, err := os.ReadFile(file)
	assert.NilError(t, err)
	state := map[bool]string{true: "0A", false: "07"}[strings.HasPrefix(protocol, "tcp")]
	var found []listener
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 10 || f[3] != state {
			continue
		}
		process, owned := owners[f[9]]
		if !owned && kernel {
			process = "kernel"
		}
		if process != "" {
			found = append(found, listener{endpoint: strings.TrimSuffix(protocol, "6") + " " + socketAddress(t, f[1]), process: process})
		}
	}
	return found
}

// socketAddress decodes ADDRESS:PORT of /proc/net: the address is hexadecimal, in 32-bit words of the host's byte order.
func socketAddress(t *testing.T, text string) string {
	t.Helper()
	address, port, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(address)
	assert.NilError(t, err)
	for word := range slices.Chunk(raw, 4) {
		slices.Reverse(word)
	}
	ip, _ := netip.AddrFromSlice(raw)
	number, err := strconv.ParseUint(port, 16, 16)
	assert.NilError(t, err)
	return netip.AddrPortFrom(ip, uint16(number)).String()
}

// unixSockets reads /proc/PID/net/unix: sockets that accept connections (flag __SO_ACCEPTCON) and datagram sockets with a name.
func unixSockets(t *testing.T, file string, owners socketOwners) []listener {
	t.Helper()
	b, err := os.ReadFile(file)
	assert.NilError(t, err)
	var found []listener
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 8 || f[3] != "00010000" && f[4] != "0002" {
			continue
		}
		if process, ours := owners[f[6]]; ours {
			found = append(found, listener{endpoint: "unix " + f[7], process: process})
		}
	}
	return found
}

// onlyDocumentedListeners compares a running node with the table of listeners, both ways. The node must have a Service of type
// NodePort, and no pods in its own network namespace.
func (n *testNode) onlyDocumentedListeners() {
	n.t.Helper()
	documented, running := documentedListeners(n.t), n.runningListeners()
	for _, r := range running {
		assert.Check(n.t, slices.ContainsFunc(documented, func(d listener) bool { return d.covers(r) }),
			"docs/security.md does not list: %s", r)
	}
	for _, d := range documented {
		assert.Check(n.t, !d.always || slices.ContainsFunc(running, d.covers), "the node does not have: %s", d)
	}
}
