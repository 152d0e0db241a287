package noderole

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/template"

	"github.com/sirupsen/logrus"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component/catalogue"
	"github.com/rootlessnode/rootlessnode/internal/filewatch"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/portfwd"
)

// allowedPort is a port on the host's own addresses that the node and its pods, or only the node, may use. The zero ip
// matches every address of the host.
type allowedPort struct {
	ip       netip.Addr
	proto    string
	port     int
	nodeOnly bool
}

// hostAccess blocks connections from the node and its pods to the host's own addresses (network.allowHostAddresses). A
// network driver that runs on the host makes such a connection from the host to itself, so the packet filter in the
// node's network namespace rejects it first. The filter has its own tables, separate from those of kube-proxy, flannel
// and network policies, and needs only kernel features that kube-proxy needs too.
type hostAccess struct {
	file string // the file in which the parent writes the host's addresses
	log  logrus.FieldLogger
	// uplink is the device towards the host.
	uplink string
	// gateways are the addresses that are mapped to the host's loopback (network.allowHostLoopback). If the host has
	// the same addresses, they are not blocked.
	gateways []netip.Addr
	// fixed are the ports that the node always needs, in addition to its forwards.
	fixed []allowedPort
	load  func(ctx context.Context, rules string) error
	// families are the filtered nftables families: ip, ip6.
	families []string
	// wake signals the unit that the forwards have changed.
	wake chan struct{}

	mu        sync.Mutex
	host      []netip.Addr
	forwarded []allowedPort // the node's ports on the host
	applied   map[string]string
}

// newHostAccess returns the node's filter without loading it. file has the host's addresses.
func newHostAccess(cfg *config.NodeConfig, h layout.NetworkInfo, file string, log logrus.FieldLogger) *hostAccess {
	a := &hostAccess{
		file: file, log: log, uplink: h.Interface, load: loadRules, families: []string{"ip", "ip6"}, wake: make(chan struct{}, 1),
		applied: map[string]string{},
	}
	bridged := h.Driver == config.DriverLXCUserNIC // the gateway is an ordinary address of the host
	if cfg.Network.AllowHostLoopback && !bridged {
		for _, gateway := range []string{h.Gateway, config.TapGatewayV6} {
			if ip, err := netip.ParseAddr(gateway); err == nil {
				a.gateways = append(a.gateways, ip)
			}
		}
	}
	if bridged {
		a.fixed = append(a.fixed, allowedPort{proto: "udp", port: dhcpServerPort, nodeOnly: true}) // to renew the lease
	}
	for _, server := range slices.Concat(h.DNS, cfg.Network.NameServers) {
		if ip, err := netip.ParseAddr(server); err == nil {
			a.fixed = append(a.fixed, allowedPort{ip: ip, proto: "udp", port: dnsPort}, allowedPort{ip: ip, proto: "tcp", port: dnsPort})
		}
	}
	// Other nodes of the cluster may run on the same host at other addresses.
	if cfg.MultiNode() {
		for _, p := range catalogue.Forwards(cfg, netip.IPv4Unspecified()) {
			if f := p.Forward; f.AtNode {
				a.fixed = append(a.fixed, allowedPort{proto: p.Proto, port: f.Port, nodeOnly: f.Name == podNetForward})
			}
		}
	}
	if cfg.Joins() {
		a.fixed = append(a.fixed, apiPorts(cfg.Join.Server)...)
	}
	return a
}

// apiPorts returns the port of an API server that may run on the same host. If the URL has a host name, every address of
// the host is allowed, because the name's addresses are not known here and may change.
func apiPorts(server string) []allowedPort {
	u, err := url.Parse(server)
	if err != nil {
		return nil // Validate rejects it
	}
	o := allowedPort{proto: "tcp", port: httpsPort}
	if port, err := strconv.Atoi(u.Port()); err == nil {
		o.port = port
	}
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil {
		o.ip = ip
	}
	return []allowedPort{o}
}

// Ports of services that a node may use at the host's addresses.
const (
	dnsPort        = 53
	dhcpServerPort = 67
	httpsPort      = 443
)

// setHost replaces the host's addresses.
func (a *hostAccess) setHost(list []layout.HostAddress) {
	var host []netip.Addr
	for _, h := range list {
		ip := h.IP.WithZone("")
		if ip.IsValid() && !ip.IsLoopback() && !slices.Contains(a.gateways, ip) && !slices.Contains(host, ip) {
			host = append(host, ip)
		}
	}
	slices.SortFunc(host, netip.Addr.Compare)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.host = host
}

// setForwarded replaces the list of ports that the node has open on the host, and wakes the unit if the list has
// changed. The pod network's port is left out, because a pod that can send to it could reach every pod and bypass
// network policies.
func (a *hostAccess) setForwarded(ports []portfwd.PortStatus) {
	podNet := portfwd.Owner{Kind: portfwd.KindStatic, Name: podNetForward}.String()
	var list []allowedPort
	for _, p := range ports {
		ip, err := netip.ParseAddr(p.HostIP)
		if err != nil || p.State != portfwd.StateOpen || ip.IsLoopback() || p.Owner == podNet {
			continue
		}
		list = append(list, allowedPort{ip: ip, proto: transport(p.Proto), port: p.HostPort})
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if slices.Equal(list, a.forwarded) {
		return
	}
	a.forwarded = list
	select {
	case a.wake <- struct{}{}:
	default: // already signaled
	}
}

// transport removes the address family from a RootlessKit protocol: tcp4 becomes tcp.
func transport(proto string) string { return strings.TrimRight(proto, "46") }

// apply loads the current rules of all families into the kernel. It must not be called concurrently.
func (a *hostAccess) apply(ctx context.Context) error {
	var errs []error
	for _, family := range a.families {
		errs = append(errs, a.applyFamily(ctx, family))
	}
	return errors.Join(errs...)
}

func (a *hostAccess) applyFamily(ctx context.Context, family string) error {
	a.mu.Lock()
	host, open := slices.Clone(a.host), slices.Concat(a.fixed, a.forwarded)
	a.mu.Unlock()
	rules, err := hostRules(family, a.uplink, host, open)
	if err != nil || rules == a.applied[family] {
		return err
	}
	if err := a.load(ctx, rules); err != nil {
		return fmt.Errorf("block connections to the host's addresses: %w", err)
	}
	a.applied[family] = rules
	return nil
}

// hostTable is the name of the filter's table.
const hostTable = "rootlessnode-host"

// hostRuleText is one table, which is replaced as a whole. It runs after address translation, so that it sees the real
// destination of a packet, and before kube-proxy's filter. Blocked packets are rejected, not dropped.
var hostRuleText = template.Must(template.New("").Parse(`add table {{.Family}} {{.Table}}
delete table {{.Family}} {{.Table}}
table {{.Family}} {{.Table}} {
	set host {
		type {{.Type}}
{{- with .Host}}
		elements = { {{.}} }
{{- end}}
	}
	set open {
		type {{.Type}} . inet_proto . inet_service
{{- with .Open}}
		elements = { {{.}} }
{{- end}}
	}
	set node {
		type {{.Type}} . inet_proto . inet_service
{{- with .Node}}
		elements = { {{.}} }
{{- end}}
	}
	chain refuse {
		ct state established,related accept
{{- if eq .Family "ip6"}}
		icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, nd-router-solicit, nd-router-advert } accept
{{- end}}
		{{.Family}} daddr . meta l4proto . th dport @open accept
		meta l4proto tcp reject with tcp reset
		reject with {{.ICMP}} type admin-prohibited
	}
	chain output {
		type filter hook output priority -5; policy accept;
		oifname "{{.Uplink}}" {{.Family}} daddr . meta l4proto . th dport @node accept
		oifname "{{.Uplink}}" {{.Family}} daddr @host jump refuse
	}
	chain forward {
		type filter hook forward priority -5; policy accept;
		oifname "{{.Uplink}}" {{.Family}} daddr @host jump refuse
	}
}
`))

// hostRules renders the table of one family.
func hostRules(family, uplink string, host []netip.Addr, open []allowedPort) (string, error) {
	is4 := family == "ip"
	v := struct{ Family, Table, Type, ICMP, Uplink, Host, Open, Node string }{
		Family: family, Table: hostTable, Type: "ipv4_addr", ICMP: "icmp", Uplink: uplink,
	}
	if !is4 {
		v.Type, v.ICMP = "ipv6_addr", "icmpv6"
	}
	var addresses, ports, node []string
	for _, ip := range host {
		if ip.Is4() != is4 {
			continue
		}
		addresses = append(addresses, ip.String())
		for _, o := range open {
			if o.ip != ip && o.ip.IsValid() && (!o.ip.IsUnspecified() || o.ip.Is4() != is4) {
				continue
			}
			element := fmt.Sprintf("%s . %s . %d", ip, o.proto, o.port)
			if o.nodeOnly {
				node = append(node, element)
			} else {
				ports = append(ports, element)
			}
		}
	}
	slices.Sort(ports)
	slices.Sort(node)
	v.Host, v.Open, v.Node = strings.Join(addresses, ", "), strings.Join(slices.Compact(ports), ", "), strings.Join(slices.Compact(node), ", ")
	var b strings.Builder
	if err := hostRuleText.Execute(&b, v); err != nil {
		return "", fmt.Errorf("render the rules for the host's addresses: %w", err)
	}
	return b.String(), nil
}

// loadRules loads nftables rules into the kernel as one transaction.
func loadRules(ctx context.Context, rules string) error {
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	return runCommand(cmd)
}

// startHostAccess loads the filter before any filtered program runs. It returns nil if the config does not require the
// filter or the kernel does not support it, with warnings for the user. With network.driver none there is no connection
// to block.
func startHostAccess(
	ctx context.Context, cfg *config.NodeConfig, h layout.NetworkInfo, file string, log logrus.FieldLogger,
) (a *hostAccess, warnings []string, err error) {
	if cfg.Network.AllowHostAddresses || cfg.Network.Driver == config.DriverNone {
		return nil, nil, nil
	}
	a = newHostAccess(cfg, h, file, log)
	if err := a.read(); err != nil {
		return nil, nil, err
	}
	a.families = slices.DeleteFunc(a.families, func(family string) bool {
		err := a.applyFamily(ctx, family)
		if err != nil && (family == "ip" || ipv6Enabled()) {
			warnings = append(warnings, fmt.Sprintf(
				"network.allowHostAddresses: false is not enforced in family %s; pods can reach services at the host's addresses: %v", family, err))
		}
		return err != nil
	})
	if len(a.families) == 0 {
		return nil, warnings, nil
	}
	return a, warnings, nil
}

// ipv6Enabled reports whether the kernel supports IPv6.
func ipv6Enabled() bool {
	_, err := os.Stat("/proc/net/if_inet6")
	return err == nil
}

// read reads the host's addresses.
func (a *hostAccess) read() error {
	var list []layout.HostAddress
	if err := layout.ReadJSON(a.file, &list); err != nil {
		return fmt.Errorf("read the host's addresses: %w", err)
	}
	a.setHost(list)
	return nil
}

// Run updates the filter when the host's addresses or the node's forwarded ports change.
func (a *hostAccess) Run(ctx context.Context, ready func()) error {
	host, err := filewatch.New(a.file, filewatch.JSON[[]layout.HostAddress])
	if err != nil {
		return err
	}
	defer host.Close()
	for {
		if err := errors.Join(a.read(), a.apply(ctx)); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		ready()
		select {
		case <-ctx.Done():
			return nil
		case <-a.wake:
		case <-host.Changed():
		}
	}
}
