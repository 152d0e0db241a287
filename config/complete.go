package config

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

// dnsHostNumber is the cluster DNS Service's place in the Service network, as kubeadm and others have it.
const dnsHostNumber = 10

const (
	// maxPodStop is the longest timeouts.podStop that Complete fills in: a pod with the default grace period of 30 seconds
	// ends in it, with its preStop hook, and after it the critical pods.
	maxPodStop = Duration(60 * time.Second)
	// restStop is what it leaves of timeouts.stop for the rest of the node.
	restStop = Duration(30 * time.Second)
)

// HostFacts is what Complete has to know of the host. The caller reads it; this package reads no host.
type HostFacts struct {
	// Hostname as uname(2) gives it.
	Hostname string
	// XDGDataHome is $XDG_DATA_HOME, or ~/.local/share where that is unset: absolute.
	XDGDataHome string
}

// Complete fills in what Default leaves open: NodeName, DataDir, Cluster.DNSAddress, Timeouts.PodStop and Ports.BindAddresses.
// What is set stays. A node that joins has no control plane of its own; one that serves others has its API server on one port inside
// and outside.
func (c *NodeConfig) Complete(h HostFacts) {
	if c.NodeName == "" {
		c.NodeName = strings.ToLower(strings.TrimSuffix(h.Hostname, "."))
	}
	if c.DataDir == "" && h.XDGDataHome != "" {
		c.DataDir = layout.DefaultDataDir(h.XDGDataHome, c.Name)
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
	if c.Serves() {
		// Pods of other nodes reach the API server at the host's address with the port that it has inside.
		c.Inside.APIServerPort = c.API.Port
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

// UseName sets the node's name as --name and ROOTLESSNODE_NAME do. A file that carries another name of its own (an
// effective config printed for another node) is refused, so that no node runs with the data of its neighbour unnoticed.
func (c *NodeConfig) UseName(name string) error {
	if c.Name != DefaultName && c.Name != name {
		err := fmt.Errorf("name: the config is that of node %q, but node %q was asked for", c.Name, name)
		return errdefs.WithHintf(errdefs.Class(errdefs.ErrConfig, err),
			"take the lines name: and dataDir: out of the config, or say --name %s", c.Name)
	}
	c.Name = name
	return nil
}

// nthAddress is the address n places after the first of p, or the zero Addr if p is too small.
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
