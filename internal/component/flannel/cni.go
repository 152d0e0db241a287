package flannel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/kubeproxy"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// SubnetEnv is the content of flanneld's subnet file: the lease in use.
type SubnetEnv struct {
	// Network is the pod network of the cluster, and Subnet the node's part of it. The address of Subnet is that of the
	// node's bridge.
	Network, Subnet netip.Prefix
	// NetworkV6 and SubnetV6 are the IPv6 ranges, or the zero Prefix without IPv6.
	NetworkV6, SubnetV6 netip.Prefix
	// MTU of pod interfaces in bytes.
	MTU int
	// IPMasq reports whether flanneld masquerades traffic that leaves the pod network. Otherwise CNI does.
	IPMasq bool
}

// ParseSubnetEnv parses flannel's subnet.env, which has lines of KEY=VALUE. Unknown keys are ignored, because new
// flannel versions may add some. The required keys must be present and valid; all errors are returned.
func ParseSubnetEnv(data []byte) (SubnetEnv, error) {
	values := map[string]string{}
	var errs []error
	for n, line := range bytes.Split(data, []byte("\n")) {
		text := strings.TrimSpace(string(line))
		if text == "" {
			continue
		}
		key, value, ok := strings.Cut(text, "=")
		if !ok {
			errs = append(errs, fmt.Errorf("line %d: %q is not KEY=VALUE", n+1, text))
			continue
		}
		values[key] = value
	}
	var env SubnetEnv
	parse := func(key string, into func(string) error) {
		value, ok := values[key]
		if !ok {
			errs = append(errs, fmt.Errorf("%s is missing", key))
		} else if err := into(value); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
		}
	}
	parse("FLANNEL_NETWORK", func(s string) (err error) { env.Network, err = prefix4(s); return err })
	parse("FLANNEL_SUBNET", func(s string) (err error) { env.Subnet, err = prefix4(s); return err })
	parse("FLANNEL_MTU", func(s string) (err error) { env.MTU, err = mtu(s); return err })
	parse("FLANNEL_IPMASQ", func(s string) (err error) { env.IPMasq, err = strconv.ParseBool(s); return err })
	if _, ok := values[keyNetworkV6]; ok {
		parse(keyNetworkV6, func(s string) (err error) { env.NetworkV6, err = prefix6(s); return err })
		parse("FLANNEL_IPV6_SUBNET", func(s string) (err error) { env.SubnetV6, err = prefix6(s); return err })
	}
	if err := errors.Join(errs...); err != nil {
		return SubnetEnv{}, err
	}
	for _, p := range env.families() {
		if !p.network.Contains(p.subnet.Addr()) || p.subnet.Bits() < p.network.Bits() {
			return SubnetEnv{}, fmt.Errorf("subnet %s is not in network %s", p.subnet, p.network)
		}
	}
	return env, nil
}

const keyNetworkV6 = "FLANNEL_IPV6_NETWORK"

type family struct{ network, subnet netip.Prefix }

// families returns the lease's ranges, IPv4 first.
func (e SubnetEnv) families() []family {
	out := []family{{e.Network, e.Subnet}}
	if e.NetworkV6.IsValid() {
		out = append(out, family{e.NetworkV6, e.SubnetV6})
	}
	return out
}

func prefix4(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err == nil && !p.Addr().Is4() {
		err = fmt.Errorf("%s is not an IPv4 network", s)
	}
	return p, err
}

func prefix6(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err == nil && (p.Addr().Is4() || p.Addr().Is4In6()) {
		err = fmt.Errorf("%s is not an IPv6 network", s)
	}
	return p, err
}

// minMTU is the smallest MTU of IPv4 (RFC 791).
const minMTU = 68

func mtu(s string) (int, error) {
	v, err := strconv.Atoi(s)
	if err == nil && v < minMTU {
		err = fmt.Errorf("%d bytes is less than %d, the minimum for IPv4", v, minMTU)
	}
	return v, err
}

type confList struct {
	CNIVersion string `json:"cniVersion"`
	Name       string `json:"name"`
	Plugins    []any  `json:"plugins"`
}

type bridge struct {
	Type             string    `json:"type"`
	Bridge           string    `json:"bridge"`
	MTU              int       `json:"mtu"`
	IsDefaultGateway bool      `json:"isDefaultGateway"`
	HairpinMode      bool      `json:"hairpinMode"`
	IPMasq           bool      `json:"ipMasq"`
	IPMasqBackend    string    `json:"ipMasqBackend,omitempty"`
	IPAM             hostLocal `json:"ipam"`
}

type hostLocal struct {
	Type   string      `json:"type"`
	Ranges [][]ipRange `json:"ranges"`
	Routes []route     `json:"routes"`
}

type ipRange struct {
	Subnet string `json:"subnet"`
}

type route struct {
	Dst string `json:"dst"`
}

type portMap struct {
	Type         string          `json:"type"`
	Backend      string          `json:"backend"`
	SNAT         bool            `json:"snat"`
	Capabilities map[string]bool `json:"capabilities"`
}

const (
	cniVersion = "1.0.0"
	bridgeName = "cni0"
)

// RenderCNI returns the CNI configuration of the node as a file. It must be written after flannel has a lease, because
// containerd watches the directory and the Node becomes Ready when the file exists.
func RenderCNI(e component.Env, env SubnetEnv) (component.File, error) {
	b := bridge{
		Type: "bridge", Bridge: bridgeName, MTU: env.MTU, IsDefaultGateway: true,
		// Hairpin mode lets a pod reach itself through its Service.
		HairpinMode: true,
		IPMasq:      !env.IPMasq,
		IPAM:        hostLocal{Type: "host-local"},
	}
	for _, f := range env.families() { // a pod gets one address per family
		b.IPAM.Ranges = append(b.IPAM.Ranges, []ipRange{{Subnet: f.subnet.Masked().String()}})
		b.IPAM.Routes = append(b.IPAM.Routes, route{Dst: f.network.Masked().String()})
	}
	if b.IPMasq {
		b.IPMasqBackend = packetFilter(e)
	}
	data, err := json.MarshalIndent(confList{
		CNIVersion: cniVersion, Name: "rootlessnode",
		Plugins: []any{
			b,
			portMap{Type: "portmap", Backend: packetFilter(e), SNAT: true, Capabilities: map[string]bool{"portMappings": true}},
		},
	}, "", "  ")
	if err != nil {
		return component.File{}, fmt.Errorf("render CNI configuration: %w", err)
	}
	return component.File{Path: layout.InsideCNIConfFile, Mode: 0o644, Data: append(data, '\n')}, nil
}

// packetFilter returns the packet filter that kube-proxy uses, so that the node needs only one.
func packetFilter(e component.Env) string {
	if e.KubeProxyMode == kubeproxy.ModeNFTables {
		return "nftables"
	}
	return "iptables"
}
