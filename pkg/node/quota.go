package node

import (
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/etcd"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// checkQuota returns an error if the data of a control plane does not fit in the quota of the configuration.
func checkQuota(n *Node) error {
	cfg := n.Config()
	dir, ok := n.data.OnHost(layout.InsideEtcd)
	if !ok || !component.EmbeddedControlPlane(cfg) {
		return nil
	}
	return etcd.CheckQuota(cfg, dir)
}
