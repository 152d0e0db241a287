package config

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"net/url"
	"strings"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
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

// Values of Storage.
const (
	StorageLocal = "local"
	StorageNone  = "none"
)

// BindNodeIP in Ports.BindAddresses means the current address of the node (NodeIP).
const BindNodeIP = "node-ip"

// Joins reports whether the node is a worker of another control plane.
func (c *NodeConfig) Joins() bool {
	return c.Join.Server != "" || c.Join.BootstrapKubeconfig != "" || c.Join.Kubeconfig != ""
}

// Serves reports whether other nodes can use the node's own control plane: its API server does not listen on loopback.
func (c *NodeConfig) Serves() bool {
	ip, err := netip.ParseAddr(c.API.BindAddress)
	return c.ControlPlane.Embedded && !c.Joins() && err == nil && !ip.Unmap().IsLoopback()
}

// MultiNode reports whether the cluster can have other nodes. The Node object then has an address of the host (NodeIP), on
// which the ports of the kubelet and the pod network are forwarded.
func (c *NodeConfig) MultiNode() bool { return c.Joins() || c.Serves() }

// ParseServer parses the URL of an API server, which consists of https, a host and an optional port (default 6443). It returns
// "https://HOST:PORT".
func ParseServer(s string) (string, error) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return "", fmt.Errorf("%q: must have the form https://HOST:PORT", s)
	}
	if u.Port() == "" {
		u.Host += ":6443"
	}
	return "https://" + u.Host, nil
}

const caHashPrefix = "sha256:"

// validCAHash reports whether s has the format that kubeadm prints.
func validCAHash(s string) bool {
	digest, ok := strings.CutPrefix(strings.ToLower(s), caHashPrefix)
	b, err := hex.DecodeString(digest)
	return ok && err == nil && len(b) == 32
}

func validateJoin(c *NodeConfig, fs *faults) {
	j := c.Join
	if j.Server != "" {
		if _, err := ParseServer(j.Server); err != nil {
			fs.add("join.server", "", "%v", err)
		}
	}
	for i, h := range j.CACertHashes {
		if !validCAHash(h) {
			fs.list = append(fs.list, errdefs.Errorf("join.caCertHashes[%d]: %q: must be sha256: followed by 64 hexadecimal digits", i, h).
				With(errdefs.Do(errdefs.CreateToken).Note("prints it on the first node of the cluster")))
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
		fs.add(ways[1], "", "cannot be combined with %s", ways[0])
	}
	if len(j.CACertHashes) > 0 && j.Server == "" {
		fs.add("join.caCertHashes", "", "requires join.server")
	}
	if !c.ControlPlane.Embedded && !c.Joins() {
		fs.add("controlPlane.embedded", "join: {server: https://HOST:6443}", "false, but no cluster to join is configured")
	}
	if c.Joins() && len(c.Addons) > 0 {
		fs.add("addons", "", "set, but this node is a worker: set it on the first node of the cluster")
	}
	validateNodeIP(c, fs)
}

func validateNodeIP(c *NodeConfig, fs *faults) {
	if ip, err := netip.ParseAddr(c.API.BindAddress); err == nil && c.Serves() && !ip.Unmap().Is4() {
		fs.add("api.bindAddress", "api.bindAddress: 0.0.0.0    # or an IPv4 address of the host",
			"%s: must be an IPv4 address, because other nodes and pods use it to reach the API server", c.API.BindAddress)
	}
	if c.NodeIP != "" {
		switch ip, err := netip.ParseAddr(c.NodeIP); {
		case err != nil || !ip.Unmap().Is4() || ip.IsUnspecified() || ip.IsLoopback() || ip.IsMulticast():
			fs.add("nodeIP", "", "%q: must be an IPv4 address of the host at which other nodes reach it", c.NodeIP)
		case inNetwork(ip, c.Network.CIDR):
			fs.add("nodeIP", "", "%s is in network.cidr, which is internal to each node: must be an address of the host", c.NodeIP)
		case c.Serves() && !sameOrAll(c.API.BindAddress, ip):
			fs.add("nodeIP", "api.bindAddress: "+c.NodeIP+"    # or 0.0.0.0", "%s: pods of other nodes reach the API server at this address, but it listens on %s only",
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
		fs.add("network.ipv6", "network.ipv6: false", "not supported in a cluster with other nodes, because the pod network between hosts is IPv4")
	}
	if c.MultiNode() && c.Flannel.Backend == "host-gw" {
		fs.add("flannel.backend", "flannel.backend: vxlan",
			"host-gw: not supported in a cluster with other nodes, because the nodes do not share a link")
	}
}

// sameOrAll reports whether a listener on bind is reachable at ip.
func sameOrAll(bind string, ip netip.Addr) bool {
	b, err := netip.ParseAddr(bind)
	return err == nil && (b.IsUnspecified() || b.Unmap() == ip.Unmap())
}

func inNetwork(ip netip.Addr, cidr string) bool {
	p, err := netip.ParsePrefix(cidr)
	return err == nil && p.Contains(ip.Unmap())
}
