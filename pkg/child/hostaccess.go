package child

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/template"

	"github.com/fsnotify/fsnotify"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
	"github.com/rootlessnode/rootlessnode/pkg/portfwd"
)

// opening is a port of the host's own addresses that the node and its pods may use, or only the node. The zero ip means every address of
// the host.
type opening struct {
	ip       netip.Addr
	proto    string
	port     int
	nodeOnly bool
}

// hostAccess keeps the node and its pods from the host's own addresses (network.allowHostAddresses). To a network driver that
// works on the host, a connection to such an address is one of the host to itself, so the packet filter of the node's network
// namespace refuses it before it gets there. kube-proxy, flannel and network policies have tables of their own; these two ask no more
// of the kernel than kube-proxy does.
type hostAccess struct {
	// uplink is the only device that leads to the host.
	uplink string
	// gateways are the addresses that stand for the host's loopback where that is open (network.allowHostLoopback). They hide addresses
	// of the host, if it has the same.
	gateways []netip.Addr
	// fixed is what the node needs whatever it forwards.
	fixed []opening
	load  func(ctx context.Context, rules string) error
	// families are those that are filtered: ip, ip6.
	families []string
	// wake tells the unit that something has changed.
	wake chan struct{}

	mu        sync.Mutex
	host      []netip.Addr
	forwarded []opening // the node's own ports on the host
	applied   map[string]string
}

// closesHost reports whether the setting asks for a filter. Without a way out there is nothing to close.
func (n *nodeRole) closesHost() bool {
	return !n.cfg.Network.AllowHostAddresses && n.cfg.Network.Driver != config.DriverNone
}

// newHostAccess returns the filter of this node, which is not in force yet. Config and handover are complete.
func (n *nodeRole) newHostAccess() *hostAccess {
	h := n.handover.Network
	a := &hostAccess{uplink: h.Interface, load: loadRules, families: []string{"ip", "ip6"}, wake: make(chan struct{}, 1), applied: map[string]string{}}
	bridged := h.Driver == config.DriverLXCUserNIC // whose gateway is an address of the host as any other
	if n.cfg.Network.AllowHostLoopback && !bridged {
		for _, gateway := range []string{h.Gateway, config.TapGatewayV6} {
			if ip, err := netip.ParseAddr(gateway); err == nil {
				a.gateways = append(a.gateways, ip)
			}
		}
	}
	if bridged {
		a.fixed = append(a.fixed, opening{proto: "udp", port: dhcpServerPort, nodeOnly: true}) // the lease is renewed
	}
	for _, server := range slices.Concat(h.DNS, n.cfg.Network.NameServers) {
		if ip, err := netip.ParseAddr(server); err == nil {
			a.fixed = append(a.fixed, opening{ip: ip, proto: "udp", port: dnsPort}, opening{ip: ip, proto: "tcp", port: dnsPort})
		}
	}
	// Other nodes of the cluster may be on the same host, at addresses of their own.
	if n.cfg.MultiNode() {
		for _, f := range n.nodeForwards(netip.Addr{}) {
			a.fixed = append(a.fixed, opening{proto: f.Protocol, port: f.HostPort, nodeOnly: f.Name == podNetForward})
		}
	}
	if n.cfg.Joins() {
		a.fixed = append(a.fixed, n.apiOpenings()...)
	}
	return a
}

// apiOpenings are for an API server on the same host. Where the URL has a name, its addresses are not known here, and may change.
func (n *nodeRole) apiOpenings() []opening {
	u, err := url.Parse(n.cfg.Join.Server)
	if err != nil {
		return nil // Validate refuses it
	}
	o := opening{proto: "tcp", port: httpsPort}
	if port, err := strconv.Atoi(u.Port()); err == nil {
		o.port = port
	}
	if ip, err := netip.ParseAddr(u.Hostname()); err == nil {
		o.ip = ip
	}
	return []opening{o}
}

// Ports of services that a node uses on the host's own addresses.
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

// setForwarded replaces the ports that the node has on the host, and wakes the unit if that changes anything. The pod network's is not
// for pods: who can send there can send to every pod, past network policies.
func (a *hostAccess) setForwarded(ports []portfwd.PortStatus) {
	podNet := portfwd.Owner{Kind: portfwd.KindStatic, Name: podNetForward}.String()
	var list []opening
	for _, p := range ports {
		ip, err := netip.ParseAddr(p.HostIP)
		if err != nil || p.State != portfwd.StateOpen || ip.IsLoopback() || p.Owner == podNet {
			continue
		}
		list = append(list, opening{ip: ip, proto: transport(p.Proto), port: p.HostPort})
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if slices.Equal(list, a.forwarded) {
		return
	}
	a.forwarded = list
	select {
	case a.wake <- struct{}{}:
	default: // it is awake
	}
}

// transport takes the family off a protocol of RootlessKit: tcp4 is tcp.
func transport(proto string) string { return strings.TrimRight(proto, "46") }

// apply brings the kernel up to date in all families. Called by one goroutine at a time.
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
		return fmt.Errorf("refuse connections to the host's own addresses: %w", err)
	}
	a.applied[family] = rules
	return nil
}

// hostTable is the filter's own.
const hostTable = "rootlessnode-host"

// hostRuleText is one table, replaced as a whole. It comes after address translation, so that it sees where a packet really goes, and
// before kube-proxy's filter. What is refused is answered at once.
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
func hostRules(family, uplink string, host []netip.Addr, open []opening) (string, error) {
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
		return "", fmt.Errorf("write the rules for the host's addresses: %w", err)
	}
	return b.String(), nil
}

// loadRules gives rules to the kernel, all or none.
func loadRules(ctx context.Context, rules string) error {
	cmd := exec.CommandContext(ctx, "nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	return explain(cmd)
}

// closeHost puts the filter in force, before anything runs that it is for.
func (n *nodeRole) closeHost(ctx context.Context) error {
	if !n.closesHost() {
		return nil
	}
	a := n.newHostAccess()
	if err := n.readHostAddresses(a); err != nil {
		return err
	}
	a.families = slices.DeleteFunc(a.families, func(family string) bool {
		err := a.applyFamily(ctx, family)
		if err != nil && (family == "ip" || ipv6Enabled()) {
			n.warn("network.allowHostAddresses: false is not enforced in family %s, pods reach services at the host's own addresses: %v", family, err)
		}
		return err != nil
	})
	if len(a.families) > 0 {
		n.hostAccess = a
	}
	return nil
}

// ipv6Enabled reports whether the kernel has IPv6.
func ipv6Enabled() bool {
	_, err := os.Stat("/proc/net/if_inet6")
	return err == nil
}

func (n *nodeRole) readHostAddresses(a *hostAccess) error {
	var list []layout.HostAddress
	if err := layout.ReadJSON(n.rt.HostAddresses(), &list); err != nil {
		return fmt.Errorf("read the host's addresses: %w", err)
	}
	a.setHost(list)
	return nil
}

// followHost keeps the filter to the host's addresses and the node's forwarded ports.
func (n *nodeRole) followHost(ctx context.Context, ready func()) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch the host's addresses: %w", err)
	}
	defer func() { _ = w.Close() }()                                  // nothing was written
	if err := w.Add(filepath.Dir(n.rt.HostAddresses())); err != nil { // the file is replaced
		return fmt.Errorf("watch the host's addresses: %w", err)
	}
	for {
		if err := errors.Join(n.readHostAddresses(n.hostAccess), n.hostAccess.apply(ctx)); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		ready()
		if !n.hostChanged(ctx, w) {
			return nil
		}
	}
}

// hostChanged blocks until there is something to do; false: ctx has ended.
func (n *nodeRole) hostChanged(ctx context.Context, w *fsnotify.Watcher) bool {
	for {
		select {
		case <-ctx.Done():
			return false
		case <-n.hostAccess.wake:
			return true
		case e := <-w.Events:
			if e.Name == n.rt.HostAddresses() {
				return true
			}
		case err := <-w.Errors:
			n.log.WithError(err).Debug("changes of the host's addresses may have been missed: they are read again")
			return true
		}
	}
}
