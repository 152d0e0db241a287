package config

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// dnsHostNumber is the number of the cluster DNS Service's address in the Service network, as in kubeadm.
const dnsHostNumber = 10

const (
	// maxPodStop is the longest timeouts.podStop that Complete sets: enough for a pod with the default grace period of 30
	// seconds and its preStop hook, followed by the critical pods.
	maxPodStop = Duration(60 * time.Second)
	// restStop is the part of timeouts.stop that Complete reserves for the rest of the node.
	restStop = Duration(30 * time.Second)
)

// HostFacts are the properties of the host that Complete needs. The caller reads them; this package does not read the host.
type HostFacts struct {
	// Hostname is the host name that uname(2) returns.
	Hostname string
	// XDGDataHome is the absolute path of $XDG_DATA_HOME, or ~/.local/share if that is unset.
	XDGDataHome string
	// XDGConfigHome is the absolute path of $XDG_CONFIG_HOME, or ~/.config if that is unset.
	XDGConfigHome string
}

// Complete sets the fields that Default leaves empty: NodeName, DataDir, PreloadDir, UserAddons, Cluster.DNSAddress, Timeouts.PodStop and
// Ports.BindAddresses. It does not change fields that are set, with three exceptions: a node that joins a cluster gets no control
// plane, a node that serves others gets the same API server port inside as outside, and KubernetesVersion loses its leading v.
func (c *NodeConfig) Complete(h HostFacts) {
	if c.NodeName == "" {
		c.NodeName = NodeNameOf(h.Hostname)
	}
	c.KubernetesVersion = strings.TrimPrefix(c.KubernetesVersion, "v")
	if c.DataDir == "" && h.XDGDataHome != "" {
		c.DataDir = layout.DefaultDataDir(h.XDGDataHome, c.Name)
	}
	if c.UserAddons == "" && h.XDGConfigHome != "" {
		c.UserAddons = layout.UserAddonsDir(h.XDGConfigHome)
	}
	if c.PreloadDir == "" && h.XDGDataHome != "" {
		c.PreloadDir = layout.UserImagesDir(h.XDGDataHome)
	}
	if c.Cluster.DNSAddress == "" {
		if p, err := netip.ParsePrefix(c.Cluster.ServiceCIDR); err == nil {
			c.Cluster.DNSAddress = nthAddress(p, dnsHostNumber).String()
		}
	}
	if t := &c.Timeouts; t.PodStop == 0 {
		t.PodStop = min(maxPodStop, max(t.Stop-restStop, t.Stop/2))
		if rest := t.Stop - t.ComponentStop; rest > 0 {
			t.PodStop = min(t.PodStop, rest)
		}
	}
	if c.Joins() {
		c.ControlPlane.Embedded = false
	}
	if c.API.Port != 0 {
		c.SetAPIPort(c.API.Port)
	}
	if c.Ports.BindAddresses == nil {
		c.Ports.BindAddresses = []string{"127.0.0.1"}
		if c.MultiNode() {
			c.Ports.BindAddresses = append(c.Ports.BindAddresses, BindNodeIP)
		}
		if c.Network.IPv6 && c.Ports.Driver != DriverSlirp && c.Ports.Driver != DriverGvisor {
			c.Ports.BindAddresses = append(c.Ports.BindAddresses, "::1")
		}
	}
}

// SetAPIPort sets the port of the API server on the host. If the node serves others, the API server has the same port inside, because
// pods of other nodes reach it at the host's address with the port that it has inside.
func (c *NodeConfig) SetAPIPort(port int) {
	c.API.Port = port
	if c.Serves() {
		c.Inside.APIServerPort = port
	}
}

// NodeNameOf returns the name of the Node object of a host if the config sets none.
func NodeNameOf(hostname string) string { return strings.ToLower(strings.TrimSuffix(hostname, ".")) }

// UseName sets the node's name, as --name and ROOTLESSNODE_NAME do. It returns an error of class errdefs.ErrConfig if the
// config has another name, such as an effective config that was printed for another node; otherwise this node would use the
// data of the other one.
func (c *NodeConfig) UseName(name string) error {
	if c.Name != DefaultName && c.Name != name {
		err := fmt.Errorf("name: the config belongs to node %q, not to node %q", c.Name, name)
		return errdefs.Config("%w", err).Hintf("remove the lines name: and dataDir: from the config, or use --name %s", c.Name)
	}
	c.Name = name
	return nil
}

// nthAddress returns the address n places after the first address of p, or the zero Addr if p is too small.
func nthAddress(p netip.Prefix, n int) netip.Addr {
	a := p.Masked().Addr()
	for range n {
		a = a.Next()
	}
	if !p.Contains(a) {
		return netip.Addr{}
	}
	return a
}
