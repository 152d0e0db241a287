// Package catalogue lists the components of a node. A new component is a sub-package of internal/component and one line
// in All; the other packages iterate over the entries and name no component.
//
// Runs in: either side. Pure.
package catalogue

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/apiserver"
	"github.com/rootlessnode/rootlessnode/internal/component/containerd"
	"github.com/rootlessnode/rootlessnode/internal/component/controllermanager"
	"github.com/rootlessnode/rootlessnode/internal/component/coredns"
	"github.com/rootlessnode/rootlessnode/internal/component/crio"
	"github.com/rootlessnode/rootlessnode/internal/component/etcd"
	"github.com/rootlessnode/rootlessnode/internal/component/flannel"
	"github.com/rootlessnode/rootlessnode/internal/component/kubelet"
	"github.com/rootlessnode/rootlessnode/internal/component/kubeproxy"
	"github.com/rootlessnode/rootlessnode/internal/component/localregistry"
	"github.com/rootlessnode/rootlessnode/internal/component/metricsserver"
	"github.com/rootlessnode/rootlessnode/internal/component/networkpolicy"
	"github.com/rootlessnode/rootlessnode/internal/component/pki"
	"github.com/rootlessnode/rootlessnode/internal/component/scheduler"
	"github.com/rootlessnode/rootlessnode/internal/component/storage"
	"github.com/rootlessnode/rootlessnode/internal/runtime"
)

// All returns the components in the order in which the status lists them.
func All() []component.Component {
	return []component.Component{
		containerd.FuseComponent(),
		containerd.Component(),
		crio.Component(),
		kubelet.Component(),
		etcd.Component(),
		apiserver.Component(),
		controllermanager.Component(),
		scheduler.Component(),
		kubeproxy.Component(),
		flannel.Component(),
		networkpolicy.Component(),
		metricsserver.Component(),
		coredns.Component(),
		storage.Component(),
		localregistry.Component(),
		runtime.ExternalComponent(),
	}
}

// Enabled returns the components of a node with the configuration c.
func Enabled(c *config.NodeConfig) []component.Component {
	return slices.DeleteFunc(All(), func(e component.Component) bool { return e.Enabled != nil && !e.Enabled(c) })
}

// FiltersPackets reports whether a component of the node decides on packets of pods in user space.
func FiltersPackets(c *config.NodeConfig) bool {
	return slices.ContainsFunc(Enabled(c), func(e component.Component) bool { return e.FiltersPackets })
}

// BuildsPodNetwork reports whether a component of the node writes the CNI configuration.
func BuildsPodNetwork(c *config.NodeConfig) bool {
	return slices.ContainsFunc(Enabled(c), func(e component.Component) bool { return e.PodNetwork != nil })
}

// Spec returns the keys and certificates of a node with the embedded control plane.
func Spec(e component.Env) (pki.Spec, error) {
	var all []component.Certificate
	var errs []error
	for _, c := range Enabled(e.Config) {
		certificates, err := c.AllCertificates(e)
		all, errs = append(all, certificates...), append(errs, err)
	}
	return pki.NodeSpec(e, all), errors.Join(errs...)
}

// Forwards returns the ports that the node forwards from the host: first those with an address in the configuration,
// then, if node is valid, those at the address of the Node object. All have an address.
func Forwards(c *config.NodeConfig, node netip.Addr) []component.Port {
	var fixed, own []component.Port
	for _, e := range Enabled(c) {
		if e.Ports == nil {
			continue
		}
		for _, p := range e.Ports(c) {
			switch {
			case p.Forward == nil:
			case p.Forward.Address.IsValid():
				fixed = append(fixed, p)
			case node.IsValid():
				p.Forward.Address, p.Forward.AtNode = node, true
				own = append(own, p)
			}
		}
	}
	return append(fixed, own...)
}
