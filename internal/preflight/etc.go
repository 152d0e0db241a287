package preflight

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/proxyenv"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// checkHosts looks for localhost in /etc/hosts. The node completes its own file, so that these are warnings.
func checkHosts(_ context.Context, h *host) []Finding {
	const file = "/etc/hosts"
	hint := addLine(file, "127.0.0.1 localhost")
	b, err := os.ReadFile(h.path(file))
	if err != nil {
		f := warn("%s: %v: programs on this host may be unable to resolve localhost", file, errors.Unwrap(err))
		if errors.Is(err, os.ErrNotExist) { // a dangling link must not lead the shell elsewhere
			f.fix.add(asRoot("rm -f " + file))
		}
		return []Finding{f.hint(hint, asRoot("chmod 0644 "+file))}
	}
	for line := range bytes.Lines(b) {
		text, _, _ := strings.Cut(string(line), "#")
		names := strings.Fields(text)
		if len(names) < 2 {
			continue
		}
		ip, err := netip.ParseAddr(names[0])
		for _, name := range names[1:] {
			if err == nil && ip.IsLoopback() && name == "localhost" {
				return []Finding{pass("%s has localhost", file)}
			}
		}
	}
	return []Finding{warn("%s has no line for localhost: programs on this host may be unable to resolve it", file).hint(hint)}
}

// checkResolvConf looks for a name server in /etc/resolv.conf. Network drivers forward queries of the node to it.
func checkResolvConf(_ context.Context, h *host) []Finding {
	const file = "/etc/resolv.conf"
	if h.cfg.Network.Driver == config.DriverNone {
		return []Finding{pass("not needed: the node has no uplink")}
	}
	servers, err := h.nameServers()
	hint := []string{"# configure a name server with the network manager of this host, or:", addLine(file, "nameserver ADDRESS")}
	hint[1] = "# " + hint[1]
	switch {
	case err != nil:
		return []Finding{warn("%s: %v: the node cannot resolve names of other hosts, so it cannot pull images", file, errors.Unwrap(err)).hint(hint...)}
	case len(servers) == 0:
		return []Finding{warn("%s has no name server: the node cannot resolve names of other hosts, so it cannot pull images", file).hint(hint...)}
	}
	if !slices.ContainsFunc(servers, isIPv4) && needsIPv4Server(h.cfg) {
		return []Finding{warn("%s has only name servers with IPv6 addresses (%s), which the node cannot query with these settings",
			file, strings.Join(servers, ", ")).hint("# use the forwarder for IPv6: --set network.driver=slirp4netns --set network.ipv6=true",
			"# or a driver that queries the servers from the host: --set network.driver=gvisor-tap-vsock")}
	}
	return []Finding{pass("name servers: %s", strings.Join(servers, ", "))}
}

func isIPv4(server string) bool {
	ip, err := netip.ParseAddr(server)
	return err == nil && ip.Is4()
}

// needsIPv4Server reports whether the node can only query name servers with IPv4 addresses. gvisor-tap-vsock queries them from the
// host, lxc-user-nic gets other ones, and slirp4netns has a forwarder for IPv6.
func needsIPv4Server(c *config.NodeConfig) bool {
	switch c.Network.Driver {
	case config.DriverGvisor, config.DriverLXCUserNIC:
		return false
	case config.DriverSlirp, config.DriverAuto:
		return !c.Network.IPv6 && len(c.Network.NameServers) == 0
	}
	return len(c.Network.NameServers) == 0
}

// nameServers returns the addresses of the name servers in resolv.conf(5).
func (h *host) nameServers() ([]string, error) {
	r, err := hostinfo.ReadResolver(h.path(hostinfo.ResolvConf))
	return r.Servers, err
}

// caFiles and caDirs return the places where Go programs look for certificate authorities (crypto/x509, root_linux.go).
func caFiles() []string {
	return []string{
		"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/pki/tls/cacert.pem",
		"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", "/etc/ssl/cert.pem",
	}
}

func caDirs() []string { return []string{"/etc/ssl/certs", "/etc/pki/tls/certs"} }

// checkCAFiles looks for certificate authorities that the container runtime can read.
func checkCAFiles(_ context.Context, h *host) []Finding {
	files := caFiles()
	if f := h.env("SSL_CERT_FILE"); f != "" {
		files = []string{f}
	}
	for _, file := range files {
		if hasCertificate(h.path(file)) {
			return []Finding{pass("certificate authorities: %s", file)}
		}
	}
	dirs := caDirs()
	if d := h.env("SSL_CERT_DIR"); d != "" {
		dirs = filepath.SplitList(d)
	}
	for _, dir := range dirs {
		entries, _ := os.ReadDir(h.path(dir)) // a missing directory has no entries
		for _, e := range entries {
			if hasCertificate(filepath.Join(h.path(dir), e.Name())) {
				return []Finding{pass("certificate authorities: %s", dir)}
			}
		}
	}
	f := warn("no certificate authorities in %s: images cannot be pulled from registries", strings.Join(append(files, dirs...), ", "))
	f.fix.programs = []string{"ca-certificates"}
	return []Finding{f}
}

func hasCertificate(file string) bool {
	b, err := os.ReadFile(file)
	return err == nil && bytes.Contains(b, []byte("-----BEGIN CERTIFICATE-----"))
}

// checkProxy parses the proxies of the environment like the components do (golang.org/x/net/http/httpproxy). They refuse to connect to
// anything if one is malformed.
func checkProxy(_ context.Context, h *host) []Finding {
	var found []Finding
	var set []string
	for _, key := range []string{"HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"} {
		value := h.env(key)
		if value == "" {
			continue
		}
		set = append(set, key)
		if reason := badProxy(value); reason != "" {
			found = append(found, fail("%s is not the URL of a proxy: %s", key, reason).hint(
				"# set it to http://HOST:PORT, or remove it:", "unset "+key))
		}
	}
	if len(set) == 0 {
		return []Finding{pass("no proxy is set")}
	}
	if len(found) == 0 {
		found = proxiesAtLoopback(h)
	}
	return orPass(found, "proxies are valid: %s", strings.Join(set, ", "))
}

// proxiesAtLoopback returns a warning for each proxy at the host's loopback that the node may not connect to.
func proxiesAtLoopback(h *host) (found []Finding) {
	for _, port := range proxyenv.Read(h.env).LoopbackPorts() {
		if !slices.Contains(h.cfg.HostPorts(), port) {
			all := append(slices.Clone(h.cfg.Network.HostPorts), port)
			found = append(found, warn("the proxy at port %d of the host's loopback cannot be reached from the node: images cannot be pulled", port).
				steps(errdefs.Do(errdefs.Start, "network.hostPorts="+strings.Join(strings.Fields(fmt.Sprint(all)), ","))))
		}
	}
	return found
}

// badProxy returns why value is not valid, without the password that it may contain.
func badProxy(value string) string {
	if !strings.Contains(value, "://") {
		value = "http://" + value
	}
	u, err := url.Parse(value)
	switch {
	case err != nil:
		var parse *url.Error
		errors.As(err, &parse)
		return fmt.Sprint(parse.Err)
	case u.Hostname() == "":
		return "it has no host"
	}
	switch u.Scheme {
	case "http", "https", "socks5", "socks5h":
		return ""
	}
	return fmt.Sprintf("the scheme %q is not supported", u.Scheme)
}
