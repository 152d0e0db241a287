package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/flannel-io/flannel/pkg/backend"
	_ "github.com/flannel-io/flannel/pkg/backend/hostgw" // a backend registers itself
	_ "github.com/flannel-io/flannel/pkg/backend/vxlan"
	_ "github.com/flannel-io/flannel/pkg/backend/wireguard"
	"github.com/flannel-io/flannel/pkg/ipmatch"
	"github.com/flannel-io/flannel/pkg/subnet"
	"github.com/flannel-io/flannel/pkg/subnet/kube"
	"github.com/flannel-io/flannel/pkg/trafficmngr"
	"github.com/flannel-io/flannel/pkg/trafficmngr/iptables"
	"github.com/flannel-io/flannel/pkg/trafficmngr/nftables"
	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"
)

// stopGrace is how long to wait for the parts of flannel to end after the signal.
// Some of them wait for each other and never end, but have no data to save.
const stopGrace = 3 * time.Second

// run connects the node to the pod network until ctx is done. It writes the subnet
// file last, because the file indicates that the network can be used.
func run(ctx context.Context, o options, nodeName string) error {
	if nodeName == "" {
		return errors.New("NODE_NAME is not set: it must be the name of this node's Node object")
	}
	config, err := loadNetConfig(o.netConfigPath)
	if err != nil {
		return err
	}
	if err := checkPacketFilter(config); err != nil {
		return err
	}
	previous, err := readSubnetFile(o.subnetFile)
	if err != nil {
		// The file is replaced below, and only old rules depend on it.
		klog.Warningf("ignored: %v", err)
		previous, _ = parseSubnetFile("")
	}
	client, err := newClient(o)
	if err != nil {
		return err
	}

	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer func() {
		cancel()
		waitAtMost(&wg, stopGrace)
	}()

	health, err := startHealth(ctx, &wg, o.healthzIP, o.healthzPort)
	if err != nil {
		return err
	}
	traffic, manager, err := prepare(ctx, o, config, func(ctx context.Context) error { return waitPodCIDR(ctx, client, nodeName) })
	if err != nil {
		return err
	}
	network, err := register(ctx, &wg, o, config, manager)
	if err != nil {
		return err
	}
	if err := masquerade(ctx, o, config, previous, network, traffic); err != nil {
		return err
	}

	lease := network.Lease()
	if err := manager.HandleSubnetFile(o.subnetFile, config, o.ipMasq, lease.Subnet, lease.IPv6Subnet, network.MTU()); err != nil {
		return fmt.Errorf("write subnet file %s: %w", o.subnetFile, err)
	}
	klog.Infof("lease of node %s is in use: subnet %s, MTU %d, written to %s", nodeName, lease.Subnet, network.MTU(), o.subnetFile)

	ended := make(chan struct{})
	wg.Go(func() {
		defer close(ended)
		network.Run(ctx)
	})
	if err := manager.CompleteLease(ctx, lease, &wg); err != nil {
		return fmt.Errorf("mark the network of node %s as available: %w", nodeName, err)
	}
	health.setReady()
	select {
	case <-ctx.Done():
		return nil
	case <-ended:
		if ctx.Err() != nil {
			return nil
		}
		// Without the backend, routes to new nodes would be missing.
		return fmt.Errorf("backend %s ended unexpectedly", config.BackendType)
	}
}

// prepare does concurrently the steps that need no lease: it starts the subnet manager, which takes a second to synchronize,
// sets up the packet filter, and waits until the Node has a pod CIDR.
func prepare(ctx context.Context, o options, config *subnet.Config, waitCIDR func(context.Context) error) (
	traffic trafficmngr.TrafficManager, manager subnet.Manager, err error,
) {
	g, ready := errgroup.WithContext(ctx)
	g.Go(func() error { return waitCIDR(ready) })
	g.Go(func() (err error) {
		traffic, err = packetFilter(ctx, config)
		return err
	})
	g.Go(func() (err error) {
		// It reads NODE_NAME itself, and runs until its context is done.
		manager, err = kube.NewSubnetManager(ctx, o.kubeAPIURL, o.kubeconfigFile, o.kubeAnnotationPrefix,
			o.netConfigPath, o.setNodeNetworkUnavailable)
		if err != nil {
			return fmt.Errorf("subnet manager: %w", err)
		}
		return nil
	})
	err = g.Wait()
	return traffic, manager, err
}

// register finds the interface to other nodes and joins the backend's network,
// which acquires the lease.
func register(ctx context.Context, wg *sync.WaitGroup, o options, config *subnet.Config, manager subnet.Manager) (backend.Network, error) {
	// An address that an administrator set on the Node object has precedence.
	if v4, v6 := manager.GetStoredPublicIP(ctx); v4 != "" || v6 != "" {
		if v4 != "" {
			o.publicIP = v4
		}
		if v6 != "" {
			o.publicIPv6 = v6
		}
	}
	external, err := findInterface(o, config)
	if err != nil {
		return nil, err
	}
	b, err := backend.NewManager(ctx, manager, external).GetBackend(config.BackendType)
	if err != nil {
		return nil, fmt.Errorf("backend %s: %w", config.BackendType, err)
	}
	for {
		network, err := b.RegisterNetwork(ctx, wg, config)
		if err == nil {
			return network, nil
		}
		// Retry, because the manager's copy of the Node may be older than the one with the pod CIDR.
		if !strings.Contains(err.Error(), notAssigned) || ctx.Err() != nil {
			return nil, fmt.Errorf("backend %s: %w", config.BackendType, err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(registerPause):
		}
	}
}

// notAssigned is part of the error of flannel's subnet manager if the Node has no pod CIDR in its cache.
const notAssigned = "pod cidr not assigned"

// registerPause is the pause between two attempts to register.
const registerPause = 20 * time.Millisecond

// findInterface returns the interface that the flags select, in their documented
// order. Without such flags it returns that of a public address or of the default
// route.
func findInterface(o options, config *subnet.Config) (*backend.ExternalInterface, error) {
	family, err := ipmatch.GetIPFamily(config.EnableIPv4, config.EnableIPv6)
	if err != nil {
		return nil, fmt.Errorf("address family: %w", err)
	}
	type query struct{ name, regex, canReach string }
	var queries []query
	for _, name := range o.iface {
		queries = append(queries, query{name: name})
	}
	for _, regex := range o.ifaceRegex {
		queries = append(queries, query{regex: regex})
	}
	if o.ifaceCanReach != "" {
		queries = append(queries, query{canReach: o.ifaceCanReach})
	}
	if len(queries) == 0 {
		address := o.publicIP
		if address == "" {
			address = o.publicIPv6
		}
		queries = append(queries, query{name: address})
	}

	public := ipmatch.PublicIPOpts{PublicIP: o.publicIP, PublicIPv6: o.publicIPv6}
	var errs []error
	for _, q := range queries {
		external, err := ipmatch.LookupExtIface(q.name, q.regex, q.canReach, family, public)
		if err == nil {
			return external, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("interface to other nodes: %w", oneLine(errs))
}

// packetFilter initializes the configured packet filter, and removes rules of the other one, which a run with another
// configuration may have left.
func packetFilter(ctx context.Context, config *subnet.Config) (trafficmngr.TrafficManager, error) {
	var wanted, other trafficmngr.TrafficManager = &iptables.IPTablesManager{}, &nftables.NFTablesManager{}
	if config.EnableNFTables {
		wanted, other = other, wanted
	}
	if err := other.CleanUp(ctx); err != nil {
		// Usually its program is not installed, so that it has no rules.
		klog.V(1).Infof("rules of the other packet filter not removed: %v", err)
	}
	if err := wanted.Init(ctx); err != nil {
		return nil, fmt.Errorf("packet filter: %w", err)
	}
	return wanted, nil
}

// masquerade creates the masquerading rules for the lease.
func masquerade(ctx context.Context, o options, config *subnet.Config, previous previousLease, network backend.Network,
	traffic trafficmngr.TrafficManager,
) error {
	if o.ipMasq {
		const plainMasquerade = false
		if err := traffic.SetupAndEnsureMasqRules(ctx, config.Network, previous.subnet, previous.network,
			config.IPv6Network, previous.subnet6, previous.network6,
			network.Lease(), o.iptablesResync, plainMasquerade); err != nil {
			return fmt.Errorf("masquerading rules: %w", err)
		}
	}
	if o.iptablesForwardRules {
		traffic.SetupAndEnsureForwardRules(ctx, config.Network, config.IPv6Network, o.iptablesResync)
	}
	return nil
}

// checkPacketFilter checks requirements early, because the traffic manager only
// logs their errors, or fails when the lease is already acquired.
func checkPacketFilter(config *subnet.Config) error {
	if config.EnableNFTables {
		if _, err := exec.LookPath("nft"); err != nil {
			return fmt.Errorf("EnableNFTables needs the program nft: %w", err)
		}
		return nil
	}
	var errs []error
	for _, family := range []struct {
		enabled           bool
		program, bridgeNF string
	}{
		{config.EnableIPv4, "iptables", "/proc/sys/net/bridge/bridge-nf-call-iptables"},
		{config.EnableIPv6, "ip6tables", "/proc/sys/net/bridge/bridge-nf-call-ip6tables"},
	} {
		if !family.enabled {
			continue
		}
		if _, err := exec.LookPath(family.program); err != nil {
			errs = append(errs, fmt.Errorf("the program %s is needed without EnableNFTables: %w", family.program, err))
		}
		// Without it, a Pod cannot reach a Service whose endpoint is on the same bridge.
		if _, err := os.Stat(family.bridgeNF); err != nil {
			errs = append(errs, fmt.Errorf("the kernel module br_netfilter is needed without EnableNFTables: %w", err))
		}
	}
	return oneLine(errs)
}

// oneLine joins errors so that they stay on one line of a log.
func oneLine(errs []error) error {
	var joined error
	for _, err := range errs {
		if joined == nil {
			joined = err
			continue
		}
		joined = fmt.Errorf("%w; %w", joined, err)
	}
	return joined
}

func waitAtMost(wg *sync.WaitGroup, limit time.Duration) {
	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		klog.Warningf("some parts did not end within %s", limit)
	}
}
