package child

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
	"github.com/rootlessnode/rootlessnode/pkg/component/flannel"
	"github.com/rootlessnode/rootlessnode/pkg/component/pki"
	"github.com/rootlessnode/rootlessnode/pkg/kubeapi"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
	"github.com/rootlessnode/rootlessnode/pkg/portfwd"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// addressDesk holds the address of the host by which other nodes reach this one.
type addressDesk struct {
	mu sync.Mutex
	ip netip.Addr
	// told is what the cluster was told last, and warned what of it is in the status. Both are of learnAddress and, after it,
	// of followAddress alone.
	told, warned netip.Addr
}

// now is the address; ok is false where there are no other nodes.
func (d *addressDesk) now() (ip netip.Addr, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.ip, d.ip.IsValid()
}

// learn reads the address that the parent found.
func (d *addressDesk) learn(path string) error {
	var ip netip.Addr
	if err := layout.ReadJSON(path, &ip); err != nil {
		return fmt.Errorf("read the node's address: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.ip = ip
	return nil
}

// learnAddress is done once, before anything is rendered.
func (n *nodeRole) learnAddress() error {
	if !n.cfg.MultiNode() {
		return nil
	}
	if err := n.address.learn(n.rt.NodeAddress()); err != nil {
		return err
	}
	n.tellAddress()
	ip, _ := n.address.now()
	n.address.told, n.address.warned = ip, ip // the Node object gets it before the kubelet starts
	n.env.PublicIP = ip.String()
	return nil
}

func (n *nodeRole) tellAddress() {
	ip, _ := n.address.now()
	n.hub.Update(func(s *status.Status) { s.Network.NodeAddress = ip.String() })
}

// nodeAddresses are what the Node object says.
func (n *nodeRole) nodeAddresses() []corev1.NodeAddress {
	ip, _ := n.address.now()
	return []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: ip.String()}, {Type: corev1.NodeHostName, Address: n.cfg.NodeName},
	}
}

// nodeAnnotations are what flannel reads when it starts.
func (n *nodeRole) nodeAnnotations() map[string]string {
	ip, _ := n.address.now()
	return map[string]string{flannel.AnnotationPublicIP: ip.String()}
}

// tellNode brings a Node object up to date.
func (n *nodeRole) tellNode(ctx context.Context, c *kubeapi.Client) error {
	return errors.Join(
		c.SetNodeAddresses(ctx, n.cfg.NodeName, n.nodeAddresses()),
		c.PatchNodeAnnotations(ctx, n.cfg.NodeName, n.nodeAnnotations()),
	)
}

// wireguardPort is flannel's own for that backend, in UDP (flannel, pkg/backend/wireguard).
const wireguardPort = 51820

// nodeForwards are the ports at which other nodes and the control plane reach this one: the kubelet's and the pod network's.
// The Node object and flannel's leases carry no port of the host, so the host's is the one inside.
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

// followAddress keeps the Node object, flannel and the forwards to the address that the host has, and a worker's kubeconfig
// for the host to the certificate that the kubelet has.
func (n *nodeRole) followAddress(ctx context.Context, ready func()) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch the node's address: %w", err)
	}
	defer func() { _ = w.Close() }()                                // nothing was written
	if err := w.Add(filepath.Dir(n.rt.NodeAddress())); err != nil { // the file is replaced
		return fmt.Errorf("watch the node's address: %w", err)
	}
	if n.cfg.Joins() {
		if err := w.Add(layout.InsideKubeletPKI); err != nil {
			return fmt.Errorf("watch the node's certificates: %w", err)
		}
	}
	ready()
	renewed := true // since the worker joined, perhaps
	for {
		if renewed && n.cfg.Joins() {
			if err := n.hostKubeconfig(); err != nil {
				n.log.WithError(err).Warn("the kubeconfig for the host does not follow the renewed certificate")
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
			n.log.WithError(err).Debug("changes of the node's address or certificate may have been missed: both are read")
			renewed = true
		}
	}
}

// applyAddress does nothing unless the address has changed. Called by one goroutine.
func (n *nodeRole) applyAddress(ctx context.Context) error {
	if err := n.address.learn(n.rt.NodeAddress()); err != nil {
		return err
	}
	ip, _ := n.address.now()
	if ip != n.address.warned {
		n.address.warned = ip
		n.log.WithField("address", ip).Warn("the host's address has changed, and the node's with it")
		n.tellAddress()
		if n.cfg.Serves() {
			n.warn("the API server still tells its old address to pods: rootlessnode down, and up again, and have the other nodes join anew")
		}
	}
	if ip == n.address.told {
		return nil
	}
	n.address.told = netip.Addr{} // if a part of it fails, all is done again
	n.ports.mu.Lock()
	err := n.ports.apply(n)
	n.ports.mu.Unlock()
	c, clientErr := n.client()
	if err := errors.Join(err, clientErr); err != nil {
		return err
	}
	if err := n.tellNode(ctx, c); err != nil {
		return err
	}
	if n.cfg.CNI == config.CNIFlannel {
		if err := n.group.Restart(flannel.Name); err != nil {
			return err
		}
	}
	n.address.told = ip
	return nil
}
