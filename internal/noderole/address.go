package noderole

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"sync"

	"github.com/sirupsen/logrus"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/pki"
	"github.com/rootlessnode/rootlessnode/internal/filewatch"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// nodeAddress is the address of the host at which other nodes reach this one. Its methods may be called concurrently.
type nodeAddress struct {
	path string // the file in which the parent writes the address

	mu sync.Mutex
	ip netip.Addr
}

// current returns the address, which is not valid if the node is not part of a multi-node cluster.
func (a *nodeAddress) current() netip.Addr {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.ip
}

// read reads the address that the parent detected.
func (a *nodeAddress) read() error {
	var ip netip.Addr
	if err := layout.ReadJSON(a.path, &ip); err != nil {
		return fmt.Errorf("read the node's address: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ip = ip
	return nil
}

// addressFollower updates the Node object, flannel and the forwards when the host's address changes, and a worker's
// kubeconfig for the host when the kubelet's certificate changes.
type addressFollower struct {
	cfg        *config.NodeConfig
	components []component.Component
	address    *nodeAddress
	log        logrus.FieldLogger
	hub        *status.Hub
	warn       func(...string)
	node       *nodeObject
	// forward applies the address to the forwards, restart restarts a unit, and kubeconfig updates the worker's
	// kubeconfig for the host.
	forward    func() error
	restart    func(unit string) error
	kubeconfig func() error
	// published is the address that was last written to the cluster, and warned the address that the status last
	// reported. Both are at first the address with which the node has started.
	published, warned netip.Addr
}

func (f *addressFollower) Run(ctx context.Context, ready func()) error {
	address, err := filewatch.New(f.address.path, filewatch.JSON[netip.Addr])
	if err != nil {
		return err
	}
	defer address.Close()
	var renewed <-chan struct{} // nil without a certificate that the kubelet renews
	if f.cfg.Joins() {
		certificate, err := filewatch.New(pki.NodeCert, os.ReadFile)
		if err != nil {
			return err
		}
		defer certificate.Close()
		renewed = certificate.Changed()
	}
	ready()
	for update := f.cfg.Joins(); ; { // the certificate may have been renewed since the worker joined
		if update {
			if err := f.kubeconfig(); err != nil {
				f.log.WithError(err).Warn("update the host's kubeconfig with the renewed certificate")
			}
		}
		if err := f.apply(ctx); err != nil {
			return err
		}
		update = false
		select {
		case <-ctx.Done():
			return nil
		case <-address.Changed():
		case <-renewed:
			update = true
		}
	}
}

// apply applies a changed address; it does nothing otherwise. It must not be called concurrently.
func (f *addressFollower) apply(ctx context.Context) error {
	if err := f.address.read(); err != nil {
		return err
	}
	ip := f.address.current()
	if ip != f.warned {
		f.warned = ip
		f.log.WithField("address", ip).Warn("the host's address has changed; updating the node's address")
		f.hub.Update(func(s *status.Status) { s.Network.NodeAddress = ip.String() })
		if f.cfg.Serves() {
			f.warn("the API server still advertises the old address to pods: stop and start the node, then join the other nodes again")
		}
	}
	if ip == f.published {
		return nil
	}
	f.published = netip.Addr{} // retry everything if one step fails
	if err := f.forward(); err != nil {
		return err
	}
	if err := f.node.publish(ctx); err != nil {
		return err
	}
	for _, c := range f.components {
		if !c.ReadsAddressOnce {
			continue
		}
		if err := f.restart(c.Name); err != nil {
			return err
		}
	}
	f.published = ip
	return nil
}
