package noderole

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"sync"

	"github.com/fsnotify/fsnotify"
	corev1 "k8s.io/api/core/v1"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component/flannel"
	"github.com/rootlessnode/rootlessnode/internal/component/pki"
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/portfwd"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// nodeAddress is the address of the host at which other nodes reach this one.
type nodeAddress struct {
	mu sync.Mutex
	ip netip.Addr
	// published is the address that was last written to the cluster, and warned the address that the status last
	// reported. Only readNodeAddress and, after it, followAddress use them.
	published, warned netip.Addr
}

// current returns the address. ok is false if the node is not part of a multi-node cluster.
func (a *nodeAddress) current() (ip netip.Addr, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ip, a.ip.IsValid()
}

// read reads the address that the parent detected.
func (a *nodeAddress) read(path string) error {
	var ip netip.Addr
	if err := layout.ReadJSON(path, &ip); err != nil {
		return fmt.Errorf("read the node's address: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ip = ip
	return nil
}

// readNodeAddress reads the node's address once, before anything is rendered.
func (n *nodeRole) readNodeAddress() error {
	if !n.cfg.MultiNode() {
		return nil
	}
	if err := n.address.read(n.rt.NodeAddress()); err != nil {
		return err
	}
	n.reportAddress()
	ip, _ := n.address.current()
	n.address.published, n.address.warned = ip, ip // the Node object gets the address before the kubelet starts
	n.env.PublicIP = ip.String()
	return nil
}

func (n *nodeRole) reportAddress() {
	ip, _ := n.address.current()
	n.hub.Update(func(s *status.Status) { s.Network.NodeAddress = ip.String() })
}

// nodeAddresses returns the addresses for the Node object.
func (n *nodeRole) nodeAddresses() []corev1.NodeAddress {
	ip, _ := n.address.current()
	return []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: ip.String()}, {Type: corev1.NodeHostName, Address: n.cfg.NodeName},
	}
}

// nodeAnnotations returns the annotations that flannel reads when it starts.
func (n *nodeRole) nodeAnnotations() map[string]string {
	ip, _ := n.address.current()
	return map[string]string{flannel.AnnotationPublicIP: ip.String()}
}

// updateNode writes the node's addresses and annotations to its Node object.
func (n *nodeRole) updateNode(ctx context.Context, c *kubeapi.Client) error {
	return errors.Join(
		c.SetNodeAddresses(ctx, n.cfg.NodeName, n.nodeAddresses()),
		c.PatchNodeAnnotations(ctx, n.cfg.NodeName, n.nodeAnnotations()),
	)
}

// wireguardPort is flannel's default UDP port of the WireGuard backend (flannel, pkg/backend/wireguard).
const wireguardPort = 51820

// nodeForwards returns the forwards through which the control plane and other nodes reach this node: the kubelet's and
// the pod network's. The host port equals the port inside, because neither the Node object nor flannel's leases can
// carry a different one.
func (n *nodeRole) nodeForwards(ip netip.Addr) []portfwd.Static {
	kubeletPort, udp := n.cfg.Inside.KubeletPort, n.cfg.Flannel.VXLANPort
	if n.cfg.Flannel.Backend == "wireguard" {
		udp = wireguardPort
	}
	out := []portfwd.Static{{Name: kubeletForward, Protocol: "tcp", HostIP: ip, HostPort: kubeletPort, ChildPort: kubeletPort}}
	if n.cfg.CNI == config.CNIFlannel {
		out = append(out, portfwd.Static{Name: podNetForward, Protocol: "udp", HostIP: ip, HostPort: udp, ChildPort: udp})
	}
	return out
}

// followAddress updates the Node object, flannel and the forwards when the host's address changes, and a worker's
// kubeconfig for the host when the kubelet's certificate changes.
func (n *nodeRole) followAddress(ctx context.Context, ready func()) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch the node's address: %w", err)
	}
	defer func() { _ = w.Close() }()                                // nothing was written
	if err := w.Add(filepath.Dir(n.rt.NodeAddress())); err != nil { // the file is replaced, so its directory is watched
		return fmt.Errorf("watch the node's address: %w", err)
	}
	if n.cfg.Joins() {
		if err := w.Add(layout.InsideKubeletPKI); err != nil {
			return fmt.Errorf("watch the node's certificates: %w", err)
		}
	}
	ready()
	renewed := true // the certificate may have been renewed since the worker joined
	for {
		if renewed && n.cfg.Joins() {
			if err := n.hostKubeconfig(); err != nil {
				n.log.WithError(err).Warn("update the host's kubeconfig with the renewed certificate")
			}
		}
		if err := n.applyAddress(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case e := <-w.Events:
			renewed = e.Name == pki.NodeCert && e.Has(fsnotify.Create)
		case err := <-w.Errors:
			n.log.WithError(err).Debug("file events were lost; reading the node's address and certificate again")
			renewed = true
		}
	}
}

// applyAddress applies a changed address; it does nothing otherwise. It must not be called concurrently.
func (n *nodeRole) applyAddress(ctx context.Context) error {
	if err := n.address.read(n.rt.NodeAddress()); err != nil {
		return err
	}
	ip, _ := n.address.current()
	if ip != n.address.warned {
		n.address.warned = ip
		n.log.WithField("address", ip).Warn("the host's address has changed; updating the node's address")
		n.reportAddress()
		if n.cfg.Serves() {
			n.warn("the API server still advertises the old address to pods: run `rootlessnode down` and `rootlessnode up`, then join the other nodes again")
		}
	}
	if ip == n.address.published {
		return nil
	}
	n.address.published = netip.Addr{} // retry everything if one step fails
	n.ports.mu.Lock()
	err := n.ports.apply(n)
	n.ports.mu.Unlock()
	c, clientErr := n.client()
	if err := errors.Join(err, clientErr); err != nil {
		return err
	}
	if err := n.updateNode(ctx, c); err != nil {
		return err
	}
	if n.cfg.CNI == config.CNIFlannel {
		if err := n.group.Restart(flannel.Name); err != nil {
			return err
		}
	}
	n.address.published = ip
	return nil
}
