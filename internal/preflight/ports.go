package preflight

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component/catalogue"
	"github.com/rootlessnode/rootlessnode/internal/proc"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// wantedPort is a port of the host that the node binds at its start.
type wantedPort struct {
	role, field, proto string
	ip                 netip.Addr
	port               int
	// alternative is the setting or argument to use instead.
	alternative string
}

func (p wantedPort) network() string {
	if p.ip.Is4() {
		return p.proto + "4"
	}
	return p.proto + "6"
}

func (p wantedPort) address() string { return net.JoinHostPort(p.ip.String(), strconv.Itoa(p.port)) }

// wantedPorts returns the ports that the config requires: that of the API server, those that other nodes use if node is a valid
// address, and the static forwards. Node ports are not known yet; if one is in use, the running node reports an event.
func wantedPorts(c *config.NodeConfig, node netip.Addr) []wantedPort {
	var out []wantedPort
	add := func(role, field, proto string, ip netip.Addr, port int, alternative string) {
		out = append(out, wantedPort{role, field, proto, ip, port, alternative})
	}
	if c.Ports.Driver == "none" {
		return nil
	}
	for _, p := range catalogue.Forwards(c, node) {
		if f := p.Forward; f.Field != "" && f.Port != 0 { // port 0 is picked at the start
			add(f.Role, f.Field, p.Proto, f.Address, f.Port, f.Instead)
		}
	}
	for i, s := range c.Ports.Static {
		f, err := config.ParseForward(s)
		if err != nil {
			continue // reported by Validate
		}
		field := fmt.Sprintf("ports.static[%d]", i)
		for _, ip := range c.ForwardAddresses(f) {
			for port := f.HostPort; f.HostPort != 0 && port < f.HostPort+f.Count; port++ {
				add("static forward "+s, field, f.Proto, ip, port, "another host port in "+field)
			}
		}
	}
	return out
}

func checkPorts(ctx context.Context, h *host) []Finding {
	if h.in.Running {
		return []Finding{pass("not checked: the node is running and uses its ports")}
	}
	var found []Finding
	var node netip.Addr
	if h.cfg.MultiNode() {
		var err error
		if node, err = NodeAddress(ctx, h.cfg); err != nil {
			found = append(found, fail("other nodes need an address to reach this node: %v", err).
				steps(errdefs.Do(errdefs.Start, "nodeIP=ADDRESS").Note("one of:").Text("ip -brief address")))
		}
	}
	wanted := wantedPorts(h.cfg, node)
	var names []string
	holders := sync.OnceValue(func() map[uint64]string { return socketHolders(h.proc()) })
	for _, p := range wanted {
		names = append(names, fmt.Sprintf("%s/%s (%s)", p.address(), p.proto, p.field))
		if p.proto == "tcp" && slices.Contains(h.in.InheritedListeners, p.address()) {
			continue
		}
		if err := h.probes.Listen(p.network(), p.address()); err != nil {
			found = append(found, explainListen(h, p, err, holders))
		}
	}
	if len(wanted)+len(found) == 0 {
		return []Finding{pass("the node needs no ports of the host")}
	}
	return orPass(found, "free: %s", strings.Join(names, ", "))
}

func explainListen(h *host, p wantedPort, err error, holders func() map[uint64]string) Finding {
	what := fmt.Sprintf("%s (%s) needs %s/%s", p.role, p.field, p.address(), p.proto)
	details := map[string]string{"role": p.role, "field": p.field, "address": p.address(), "proto": p.proto}
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		by := ""
		if process := holderOf(h, p, holders); process != "" {
			by, details["holder"] = ", by "+process, process
		}
		return fail("%s, which is in use%s", what, by).with(details).hint("# use "+p.alternative+", or find the process that uses the port:",
			fmt.Sprintf("ss -Hlnp 'sport = :%d'", p.port))
	case errors.Is(err, unix.EACCES):
		return privilegedPort(h, what, p.port).with(details)
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return fail("%s, but this host does not have this address", what).with(details).hint("# the addresses of this host:", "ip -brief address")
	case errors.Is(err, unix.EAFNOSUPPORT):
		return fail("%s, but this host does not support this address family", what).with(details)
	}
	return fail("%s: %v", what, err).with(details)
}

func privilegedPort(h *host, what string, port int) Finding {
	n, err := h.readInt("/proc/sys/net/ipv4/ip_unprivileged_port_start")
	if err != nil {
		n = 1024 // the kernel's default
	}
	lines := append([]string{"# let ordinary users bind the port:"}, setSysctl("net.ipv4.ip_unprivileged_port_start", port)...)
	return fail("%s, but ordinary users can bind only ports from %d (net.ipv4.ip_unprivileged_port_start)", what, n).hint(append(lines,
		"# or let only this program bind it (repeat after each update): "+asRoot("setcap cap_net_bind_service=ep "+h.self()),
		fmt.Sprintf("# or use port %d or higher", n))...)
}

// holderOf returns the name and pid, or else the uid, of the process that listens on p's port, or "" if unknown.
func holderOf(h *host, p wantedPort, holders func() map[uint64]string) string {
	for _, table := range []string{p.proto, p.proto + "6"} {
		b, err := os.ReadFile(h.path("/proc/net/" + table))
		if err != nil {
			continue
		}
		for _, s := range parseSockets(b) {
			if s.port != p.port || p.proto == "tcp" && !s.listening {
				continue
			}
			if process := holders()[s.inode]; process != "" {
				return process
			}
			return "a process of uid " + strconv.Itoa(s.uid)
		}
	}
	return ""
}

type boundSocket struct {
	port, uid int
	inode     uint64
	listening bool
}

// parseSockets parses /proc/net/{tcp,udp}{,6} (proc_net(5)): local address, state, uid and inode are columns 1, 3, 7 and 9.
func parseSockets(b []byte) []boundSocket {
	const listen = "0A"
	var out []boundSocket
	for line := range bytes.Lines(b) {
		f := strings.Fields(string(line))
		if len(f) < 10 {
			continue
		}
		_, hexPort, _ := strings.Cut(f[1], ":")
		port, err1 := strconv.ParseUint(hexPort, 16, 16)
		uid, err2 := strconv.Atoi(f[7])
		inode, err3 := strconv.ParseUint(f[9], 10, 64)
		if err1 == nil && err2 == nil && err3 == nil {
			out = append(out, boundSocket{int(port), uid, inode, f[3] == listen})
		}
	}
	return out
}

// socketHolders maps the inodes of sockets to "NAME (pid N)" for all processes whose descriptors are readable.
func socketHolders(processes proc.FS) map[uint64]string {
	holders := map[uint64]string{}
	pids, _ := processes.PIDs()
	for _, pid := range pids {
		links, _ := filepath.Glob(processes.File(pid, "fd/*"))
		for _, l := range links {
			target, _ := os.Readlink(l)
			digits, ok := strings.CutPrefix(target, "socket:[")
			inode, err := strconv.ParseUint(strings.TrimSuffix(digits, "]"), 10, 64)
			if !ok || err != nil {
				continue
			}
			name, _ := processes.Name(pid)
			holders[inode] = fmt.Sprintf("%s (pid %d)", name, pid)
		}
	}
	return holders
}
