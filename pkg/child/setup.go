package child

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/copyup"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

// leaf is the cgroup of one component, below the node's root.
func leaf(component string) string { return "system/" + component }

// setUp makes the namespaces a place where components can live. It runs before any of them.
func (n *nodeRole) setUp() error {
	if err := n.tree.Move(leaf("node"), os.Getpid()); err != nil {
		return fmt.Errorf("enter the node role's cgroup: %w", err)
	}
	if _, err := n.tree.EnsureLeaf(kubepods); err != nil { // the kubelet makes it only when it keeps cgroups for classes of pods
		return err
	}
	if err := unix.Sethostname([]byte(n.cfg.NodeName)); err != nil {
		return fmt.Errorf("set the host name inside: %w", err)
	}
	if err := nameNode(n.cfg.NodeName, n.cfg.Network.HostAddress); err != nil {
		return err
	}
	if err := nameProtocols(protocolsFile); err != nil {
		return err
	}
	if err := n.hostAddress(); err != nil {
		return err
	}
	if err := copyup.EnsureShared("/"); err != nil {
		return err
	}
	if err := raiseNoFile(); err != nil {
		n.warn("the limit of open files stays as it is: %v", err)
	}
	if err := n.sysctls(); err != nil {
		return err
	}
	return n.ensureIPv6()
}

// nameNode lets the node's own name resolve inside, and the name for what the node may reach of the host. RootlessKit has
// bound a hosts file of this run over /etc/hosts, with the host's name in it.
func nameNode(name, hostAddress string) error {
	f, err := os.OpenFile("/etc/hosts", os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("name the node in /etc/hosts: %w", err)
	}
	_, err = fmt.Fprintf(f, "127.0.0.1 %s\n%s %s\n", name, hostAddress, config.HostName)
	return errors.Join(err, f.Close())
}

// protocolsFile is where the C library looks for protocols.
const protocolsFile = "/etc/protocols"

// protocols are those of Services, and what else nft names.
const protocols = "icmp 1 ICMP\ntcp 6 TCP\nudp 17 UDP\nipv6-icmp 58 IPv6-ICMP\nsctp 132 SCTP\n"

// nameProtocols gives the node the list of protocols that a minimal host lacks (Debian's netbase has it). Without it nft lists
// "6" for "tcp", and a kube-proxy that is started again, or compares all its rules after an hour, takes its own entries for stale
// and deletes them.
func nameProtocols(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err == nil {
		_, err = f.WriteString(protocols)
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		return fmt.Errorf("name the protocols inside: %w", err)
	}
	return nil
}

// noFileMax bounds the soft limit of open files: some programs close every descriptor up to it.
const noFileMax = 1 << 20

// raiseNoFile lifts the soft limit for the components. Go does so for its own process only and gives its children the
// limit that it found, unless it was set by hand (syscall.Setrlimit).
func raiseNoFile() error {
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		return err
	}
	l.Cur = min(l.Max, noFileMax)
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l)
}

// sysctl is a kernel setting of the node's network namespace.
type sysctl struct {
	name, value string
	// optional: the kernel may have been built without it.
	optional bool
}

// sysctls sets what routing pods' packets needs. A new network namespace starts with forwarding off.
func (n *nodeRole) sysctls() error {
	want := []sysctl{
		{"net.ipv4.ip_forward", "1", false},
		// Loose: answers to a forwarded port may leave by another device than the question came in.
		{"net.ipv4.conf.all.rp_filter", "2", false},
		{"net.ipv4.conf.default.rp_filter", "2", false},
		// Without it pods of the node reach one another past the packet filter, and past policies.
		{"net.bridge.bridge-nf-call-iptables", "1", !n.cfg.EnforcesPolicies()},
		{"net.bridge.bridge-nf-call-ip6tables", "1", !n.cfg.EnforcesPolicies() || !n.cfg.Network.IPv6},
	}
	if n.cfg.Network.IPv6 {
		want = append(want,
			// A host may have IPv6 off for new devices.
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

// publicEnv returns the environment without the keys that pass between our roles.
func publicEnv(environ []string) []string {
	out := environ[:0:0]
	for _, kv := range environ {
		if !layout.IsPrivateEnv(kv) {
			out = append(out, kv)
		}
	}
	return out
}
