// Package proxyenv reads the proxies in an environment and completes them for programs of a node: only connections that leave the cluster
// may use a proxy.
//
// Runs in: parent, child or either.
package proxyenv

import (
	"cmp"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Proxies are the values of HTTP_PROXY, HTTPS_PROXY and NO_PROXY.
type Proxies struct{ HTTP, HTTPS, No string }

// Read reads the variables with lookup, for example os.Getenv. Those in upper case come first, as in the Go library.
func Read(lookup func(key string) string) Proxies {
	get := func(key string) string { return cmp.Or(lookup(key), lookup(strings.ToLower(key))) }
	return Proxies{get("HTTP_PROXY"), get("HTTPS_PROXY"), get("NO_PROXY")}
}

// Env returns the variables, each in upper and lower case because programs read different ones, with the hosts, domains (.DOMAIN) and networks
// in direct added to NO_PROXY. It returns nil if there is no proxy.
func (p Proxies) Env(direct []string) []string {
	if p.HTTP == "" && p.HTTPS == "" {
		return nil
	}
	no := strings.FieldsFunc(p.No, func(r rune) bool { return r == ',' || r == ' ' })
	if !slices.Contains(no, "*") {
		for _, d := range direct {
			if d != "" && !slices.Contains(no, d) {
				no = append(no, d)
			}
		}
	}
	var out []string
	for _, v := range []struct{ key, value string }{{"HTTP_PROXY", p.HTTP}, {"HTTPS_PROXY", p.HTTPS}, {"NO_PROXY", strings.Join(no, ",")}} {
		if v.value != "" {
			out = append(out, v.key+"="+v.value, strings.ToLower(v.key)+"="+v.value)
		}
	}
	return out
}

// None are variables that override those of Env for a program that must not use a proxy.
func None() []string {
	var out []string
	for _, key := range []string{"HTTP_PROXY", "HTTPS_PROXY"} {
		out = append(out, key+"=", strings.ToLower(key)+"=")
	}
	return out
}

// LoopbackPorts returns the ports of proxies at the loopback address of the host, which programs in the node cannot reach at the host.
func (p Proxies) LoopbackPorts() []int {
	var ports []int
	for _, value := range []string{p.HTTP, p.HTTPS} {
		if port, ok := loopbackPort(value); ok && !slices.Contains(ports, port) {
			ports = append(ports, port)
		}
	}
	return ports
}

// loopbackPort returns the port in the URL of a proxy if its host is a loopback address. The scheme is optional.
func loopbackPort(value string) (int, bool) {
	if !strings.Contains(value, "://") {
		value = "http://" + value
	}
	u, err := url.Parse(value)
	if err != nil || !Loopback(u.Hostname()) {
		return 0, false
	}
	if u.Port() == "" {
		port, err := net.LookupPort("tcp", u.Scheme)
		return port, err == nil
	}
	port, err := strconv.Atoi(u.Port())
	return port, err == nil
}

// Loopback reports whether host is localhost or a loopback address.
func Loopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback() || strings.EqualFold(strings.TrimSuffix(host, "."), "localhost")
}
