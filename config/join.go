package config

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
)

// Values of CNI.
const (
	CNIFlannel = "flannel"
	CNINone    = "none"
)

// Values of NetworkPolicy.
const (
	NetworkPolicyNone = "none"
	NetworkPolicyKube = "kube-network-policies"
)

// EnforcesPolicies tells whether a component of the node enforces NetworkPolicies for its pods.
func (c *NodeConfig) EnforcesPolicies() bool { return c.NetworkPolicy == NetworkPolicyKube }

// BindNodeIP in Ports.BindAddresses stands for the node's address (NodeIP), whatever that is at the time.
const BindNodeIP = "node-ip"

// Joins tells whether the node is a worker of another control plane.
func (c *NodeConfig) Joins() bool {
	return c.Join.Server != "" || c.Join.BootstrapKubeconfig != "" || c.Join.Kubeconfig != ""
}

// Serves tells whether the node's own control plane is there for other nodes too: its API server listens beyond loopback.
func (c *NodeConfig) Serves() bool {
	ip, err := netip.ParseAddr(c.API.BindAddress)
	return c.ControlPlane.Embedded && !c.Joins() && err == nil && !ip.Unmap().IsLoopback()
}

// MultiNode tells whether the cluster has other nodes, or may have. The Node object then carries an address of the host
// (NodeIP), at which the kubelet's port and the pod network's are forwarded.
func (c *NodeConfig) MultiNode() bool { return c.Joins() || c.Serves() }

// ParseServer reads an API server's URL: https, a host, a port (6443 if it has none), and nothing else. It returns
// "https://HOST:PORT".
func ParseServer(s string) (string, error) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("%q: want https://HOST:PORT", s)
	}
	if u.Port() == "" {
		u.Host += ":6443"
	}
	return "https://" + u.Host, nil
}

const caHashPrefix = "sha256:"

// validCAHash: the form that kubeadm prints.
func validCAHash(s string) bool {
	digest, ok := strings.CutPrefix(strings.ToLower(s), caHashPrefix)
	b, err := hex.DecodeString(digest)
	return ok && err == nil && len(b) == 32
}

func (c *NodeConfig) validateJoin(fs *faults) {
	j := c.Join
	if j.Server != "" {
		if _, err := ParseServer(j.Server); err != nil {
			fs.add("join.server", "", "%v", err)
		}
	}
	for i, h := range j.CACertHashes {
		if !validCAHash(h) {
			fs.add(fmt.Sprintf("join.caCertHashes[%d]", i), "rootlessnode token create    # on the cluster's first node prints it",
				"%q: want sha256: and 64 hexadecimal digits", h)
		}
	}
	var ways []string
	for _, w := range []struct{ field, value string }{
		{"join.server", j.Server}, {"join.bootstrapKubeconfig", j.BootstrapKubeconfig}, {"join.kubeconfig", j.Kubeconfig},
	} {
		if w.value != "" {
			ways = append(ways, w.field)
		}
	}
	if len(ways) > 1 {
		fs.add(ways[1], "", "there is %s already: want one way to join", ways[0])
	}
	for _, f := range []struct{ field, value string }{{"join.bootstrapKubeconfig", j.BootstrapKubeconfig}, {"join.kubeconfig", j.Kubeconfig}} {
		if f.value != "" {
			absolute(fs, f.field, f.value)
		}
	}
	if len(j.CACertHashes) > 0 && j.Server == "" {
		fs.add("join.caCertHashes", "", "pins the authority of join.server, which is missing")
	}
	if !c.ControlPlane.Embedded && !c.Joins() {
		fs.add("controlPlane.embedded", "join: {server: https://HOST:6443}", "false, and there is no cluster to join")
	}
	c.validateNodeIP(fs)
}

func (c *NodeConfig) validateNodeIP(fs *faults) {
	if ip, err := netip.ParseAddr(c.API.BindAddress); err == nil && c.Serves() && !ip.Unmap().Is4() {
		fs.add("api.bindAddress", "api.bindAddress: 0.0.0.0    # or one address of IPv4",
			"%s: other nodes, and all pods, look for the API server at an IPv4 address", c.API.BindAddress)
	}
	if c.NodeIP != "" {
		switch ip, err := netip.ParseAddr(c.NodeIP); {
		case err != nil || !ip.Unmap().Is4() || ip.IsUnspecified() || ip.IsLoopback() || ip.IsMulticast():
			fs.add("nodeIP", "", "%q: want an IPv4 address of the host by which others reach it", c.NodeIP)
		case inNetwork(ip, c.Network.CIDR):
			fs.add("nodeIP", "", "%s lies in network.cidr, which every node has for itself: want an address of the host", c.NodeIP)
		case c.Serves() && !sameOrAll(c.API.BindAddress, ip):
			fs.add("nodeIP", "api.bindAddress: "+c.NodeIP+"    # or 0.0.0.0", "%s is where pods of other nodes look for the API server, which listens on %s alone",
				c.NodeIP, c.API.BindAddress)
		}
	}
	if c.MultiNode() && c.Ports.Driver == DriverNone {
		fs.add("ports.driver", "ports.driver: auto", "none: other nodes could not reach this one")
	}
	if c.MultiNode() && c.Network.Driver == DriverNone {
		fs.add("network.driver", "network.driver: auto", "none: this node could not reach the others")
	}
	if c.MultiNode() && c.Network.IPv6 {
		fs.add("network.ipv6", "network.ipv6: false", "is not there in a cluster with other nodes: the pod network between hosts is IPv4")
	}
	if c.MultiNode() && c.Flannel.Backend == "host-gw" {
		fs.add("flannel.backend", "flannel.backend: vxlan",
			"host-gw routes to other nodes on a link that all share, and each node's network is its own")
	}
}

// sameOrAll tells whether who listens on bind is reached at ip.
func sameOrAll(bind string, ip netip.Addr) bool {
	b, err := netip.ParseAddr(bind)
	return err == nil && (b.IsUnspecified() || b.Unmap() == ip.Unmap())
}

func inNetwork(ip netip.Addr, cidr string) bool {
	p, err := netip.ParsePrefix(cidr)
	return err == nil && p.Contains(ip.Unmap())
}
