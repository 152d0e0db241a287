package config

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Forward is one static forward of Count consecutive host ports to ports of the node.
type Forward struct {
	// HostIP is the address to listen on. The zero Addr means all of ports.bindAddresses.
	HostIP netip.Addr
	// HostPort and NodePort are the first ports, 1 to 65535. With HostPort 0 the node picks the host port.
	HostPort, NodePort int
	// Proto is tcp or udp.
	Proto string
	// Count is the number of ports, 1 for a single port.
	Count int
}

// String returns f in the format that ParseForward reads.
func (f Forward) String() string {
	s := fmt.Sprintf("%s:%s/%s", portRange(f.HostPort, f.Count), portRange(f.NodePort, f.Count), f.Proto)
	if !f.HostIP.IsValid() {
		return s
	}
	if f.HostIP.Is6() {
		return "[" + f.HostIP.String() + "]:" + s
	}
	return f.HostIP.String() + ":" + s
}

func portRange(first, count int) string {
	if count <= 1 {
		return strconv.Itoa(first)
	}
	return fmt.Sprintf("%d-%d", first, first+count-1)
}

// ParseForward parses "[HOSTIP:]HOSTPORT:NODEPORT[/tcp|/udp]". An IPv6 HOSTIP must be in brackets; the default protocol is tcp.
// Both ports may be ranges "FIRST-LAST" of the same length. With HOSTPORT 0 the node picks the host port.
func ParseForward(s string) (Forward, error) {
	f := Forward{Proto: "tcp"}
	ports, proto, hasProto := strings.Cut(s, "/")
	if hasProto {
		if proto != "tcp" && proto != "udp" {
			return Forward{}, fmt.Errorf("protocol %q: must be tcp or udp", proto)
		}
		f.Proto = proto
	}
	// The last two colons separate the ports; the address is before them.
	ports, nodePort, ok := cutLast(ports, ":")
	if !ok {
		return Forward{}, fmt.Errorf("%q: must have the form [HOSTIP:]HOSTPORT:NODEPORT[/tcp|/udp]", s)
	}
	address, hostPort, hasIP := cutLast(ports, ":")
	if !hasIP {
		address, hostPort = "", ports
	}
	var err error
	if hasIP {
		if f.HostIP, err = parseHostIP(address); err != nil {
			return Forward{}, err
		}
	}
	hostCount := 1
	if hostPort != "0" {
		if f.HostPort, hostCount, err = parsePorts(hostPort); err != nil {
			return Forward{}, fmt.Errorf("host port %w", err)
		}
	}
	if f.NodePort, f.Count, err = parsePorts(nodePort); err != nil {
		return Forward{}, fmt.Errorf("node port %w", err)
	}
	if f.Count != hostCount {
		return Forward{}, fmt.Errorf("%q: %s and %s are ranges of different lengths", s, hostPort, nodePort)
	}
	return f, nil
}

// parsePorts parses a port or a range of ports.
func parsePorts(s string) (first, count int, err error) {
	low, high, ranged := strings.Cut(s, "-")
	if first, err = parsePort(low); err != nil || !ranged {
		return first, 1, err
	}
	last, err := parsePort(high)
	if err == nil && last < first {
		err = fmt.Errorf("range %q: ends before it begins", s)
	}
	return first, last - first + 1, err
}

// ParsePickRange parses "FIRST-LAST", a range of ports from 1024 on.
func ParsePickRange(s string) (first, last int, err error) {
	first, count, err := parsePorts(s)
	if err != nil {
		return 0, 0, err
	}
	if first < privilegedPorts {
		return 0, 0, fmt.Errorf("%q: must not contain ports below %d", s, privilegedPorts)
	}
	return first, first + count - 1, nil
}

// privilegedPorts is the kernel's default for net.ipv4.ip_unprivileged_port_start, the first unprivileged port.
const privilegedPorts = 1024

func parseHostIP(s string) (netip.Addr, error) {
	bare, bracketed := strings.CutPrefix(s, "[")
	if bracketed {
		var closed bool
		if bare, closed = strings.CutSuffix(bare, "]"); !closed {
			return netip.Addr{}, fmt.Errorf("host address %q: missing closing bracket", s)
		}
	}
	ip, err := netip.ParseAddr(bare)
	switch {
	case err != nil:
		return netip.Addr{}, fmt.Errorf("host address %q: not an IP address", s)
	case ip.Zone() != "":
		return netip.Addr{}, fmt.Errorf("host address %q: addresses with a zone are not supported", s)
	case ip.Is6() != bracketed:
		return netip.Addr{}, fmt.Errorf("host address %q: IPv6 addresses, and only these, must be in brackets", s)
	}
	return ip, nil
}

func parsePort(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || s[0] == '0' {
		return 0, fmt.Errorf("%q: must be a number between 1 and 65535", s)
	}
	return int(n), nil
}

func cutLast(s, sep string) (before, after string, found bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}
