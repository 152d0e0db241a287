package config

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Forward is one static forward: a port of the host and the node's port behind it.
type Forward struct {
	// HostIP to listen on. The zero Addr stands for each of ports.bindAddresses.
	HostIP netip.Addr
	// HostPort and NodePort, 1 to 65535.
	HostPort, NodePort int
	// Proto is tcp or udp.
	Proto string
}

// String writes f in the form that ParseForward reads.
func (f Forward) String() string {
	s := fmt.Sprintf("%d:%d/%s", f.HostPort, f.NodePort, f.Proto)
	if !f.HostIP.IsValid() {
		return s
	}
	if f.HostIP.Is6() {
		return "[" + f.HostIP.String() + "]:" + s
	}
	return f.HostIP.String() + ":" + s
}

// ParseForward reads "[HOSTIP:]HOSTPORT:NODEPORT[/tcp|/udp]". An IPv6 HOSTIP stands in brackets; tcp is the default.
func ParseForward(s string) (Forward, error) {
	f := Forward{Proto: "tcp"}
	ports, proto, hasProto := strings.Cut(s, "/")
	if hasProto {
		if proto != "tcp" && proto != "udp" {
			return Forward{}, fmt.Errorf("protocol %q: want tcp or udp", proto)
		}
		f.Proto = proto
	}
	// The last two colons part the ports; whatever stands before them is the address.
	ports, nodePort, ok := cutLast(ports, ":")
	if !ok {
		return Forward{}, fmt.Errorf("%q: want [HOSTIP:]HOSTPORT:NODEPORT[/tcp|/udp]", s)
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
	if f.HostPort, err = parsePort(hostPort); err != nil {
		return Forward{}, fmt.Errorf("host port %w", err)
	}
	if f.NodePort, err = parsePort(nodePort); err != nil {
		return Forward{}, fmt.Errorf("node port %w", err)
	}
	return f, nil
}

func parseHostIP(s string) (netip.Addr, error) {
	bare, bracketed := strings.CutPrefix(s, "[")
	if bracketed {
		var closed bool
		if bare, closed = strings.CutSuffix(bare, "]"); !closed {
			return netip.Addr{}, fmt.Errorf("host address %q: no closing bracket", s)
		}
	}
	ip, err := netip.ParseAddr(bare)
	switch {
	case err != nil:
		return netip.Addr{}, fmt.Errorf("host address %q: not an IP address", s)
	case ip.Zone() != "":
		return netip.Addr{}, fmt.Errorf("host address %q: an address with a zone cannot be forwarded", s)
	case ip.Is6() != bracketed:
		return netip.Addr{}, fmt.Errorf("host address %q: brackets are for IPv6, and IPv6 needs them", s)
	}
	return ip, nil
}

func parsePort(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || s[0] == '0' {
		return 0, fmt.Errorf("%q: want a number from 1 to 65535", s)
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
