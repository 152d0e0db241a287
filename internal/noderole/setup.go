package noderole

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component/catalogue"
	"github.com/rootlessnode/rootlessnode/internal/hostport"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
	"github.com/rootlessnode/rootlessnode/pkg/copyup"
)

// leaf returns the name of a component's cgroup, relative to the node's root.
func leaf(component string) string { return "system/" + component }

// setUp prepares the namespaces for the components, before any of them starts. It returns the node's IPv6 address, which
// is not valid without network.ipv6, and warnings for the user.
func setUp(cfg *config.NodeConfig, tree cgroupv2.Tree, network layout.NetworkInfo) (ipv6 netip.Addr, warnings []string, err error) {
	if err := tree.Move(leaf("node"), os.Getpid()); err != nil {
		return ipv6, nil, fmt.Errorf("enter the node role's cgroup: %w", err)
	}
	for _, step := range []func() error{
		func() error { _, err := tree.EnsureLeaf(kubepods); return err }, // the kubelet only creates it if it uses cgroups for QoS classes
		func() error { return setHostName(cfg.NodeName) },
		func() error { return addHostsEntries(cfg.NodeName, cfg.Network.HostAddress) },
		func() error { return ensureProtocols(ProtocolsFile) },
		func() error { return ensureHostAddress(cfg.Network.HostAddress) },
		func() error { return copyup.EnsureShared("/") },
		func() error { return sysctls(cfg) },
	} {
		if err := step(); err != nil {
			return ipv6, warnings, err
		}
	}
	if cfg.Network.IPv6 {
		if ipv6, err = ensureIPv6(network); err != nil {
			return ipv6, warnings, err
		}
	}
	return ipv6, warnings, blockPodRanges(cfg)
}

func setHostName(name string) error {
	if err := unix.Sethostname([]byte(name)); err != nil {
		return fmt.Errorf("set the host name inside: %w", err)
	}
	return nil
}

// ensureHostAddress adds the address that stands for the host to the node. The address always exists, so that a
// connection to config.HostName is always accepted or refused at once.
func ensureHostAddress(address string) error {
	ip, err := netip.ParseAddr(address)
	if err != nil {
		return fmt.Errorf("network.hostAddress: %w", err)
	}
	return hostport.EnsureAddress(ip)
}

// addHostsEntries adds the node's name and the name of the host to /etc/hosts. RootlessKit has bound a hosts file with
// the host's name over /etc/hosts for this run.
func addHostsEntries(name, hostAddress string) error {
	f, err := os.OpenFile("/etc/hosts", os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("add the node's names to /etc/hosts: %w", err)
	}
	_, err = fmt.Fprintf(f, "127.0.0.1 %s\n%s %s\n", name, hostAddress, config.HostName)
	return errors.Join(err, f.Close())
}

// ProtocolsFile is the C library's list of protocols.
const ProtocolsFile = "/etc/protocols"

// protocols are the protocols of Services and others that nft names.
const protocols = "icmp 1 ICMP\ntcp 6 TCP\nudp 17 UDP\nipv6-icmp 58 IPv6-ICMP\nsctp 132 SCTP\n"

// ensureProtocols creates the list of protocols if the host has none (Debian has it in netbase). Without it nft lists
// "6" in place of "tcp", so that a kube-proxy that restarts, or compares all its rules after an hour, considers its own
// entries stale and deletes them.
func ensureProtocols(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err == nil {
		_, err = f.WriteString(protocols)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fmt.Errorf("create the list of protocols: %w", err)
	}
	return nil
}

// sysctl is a kernel setting of the node's network namespace.
type sysctl struct {
	name, value string
	// optional settings may be missing in the kernel.
	optional bool
}

// sysctls configures the kernel to route the packets of pods. Forwarding is off in a new network namespace.
func sysctls(cfg *config.NodeConfig) error {
	filtered := catalogue.FiltersPackets(cfg)
	want := []sysctl{
		{"net.ipv4.ip_forward", "1", false},
		// Loose mode: replies of a forwarded port may leave through a different device than the request came in.
		{"net.ipv4.conf.all.rp_filter", "2", false},
		{"net.ipv4.conf.default.rp_filter", "2", false},
		// Without these settings, traffic between pods of the node bypasses the packet filter and network policies.
		{"net.bridge.bridge-nf-call-iptables", "1", !filtered},
		{"net.bridge.bridge-nf-call-ip6tables", "1", !filtered || !cfg.Network.IPv6},
	}
	if cfg.Network.IPv6 {
		want = append(want,
			// IPv6 may be disabled by default for new devices.
			sysctl{"net.ipv6.conf.all.disable_ipv6", "0", false},
			sysctl{"net.ipv6.conf.default.disable_ipv6", "0", false},
			sysctl{"net.ipv6.conf.all.forwarding", "1", false},
		)
	}
	var errs []error
	for _, s := range want {
		err := os.WriteFile("/proc/sys/"+strings.ReplaceAll(s.name, ".", "/"), []byte(s.value), 0)
		if err != nil && (!s.optional || !errors.Is(err, fs.ErrNotExist)) {
			errs = append(errs, fmt.Errorf("set %s=%s inside: %w", s.name, s.value, err))
		}
	}
	return errors.Join(errs...)
}
