package node

import (
	"context"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component/kubelet"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/membership"
	"github.com/rootlessnode/rootlessnode/internal/preflight"
)

// rejoin reads the join record in the data dir. If there is one, it configures the node as a worker of that cluster under the
// recorded name, unless cfg sets another server or name. The cluster-wide settings are then known before the cluster is contacted.
func rejoin(cfg *config.NodeConfig, facts config.HostFacts) error {
	probe := *cfg
	probe.Complete(facts)
	r, err := membership.Load(layout.NewData(probe.DataDir))
	if err != nil || r == nil {
		return err
	}
	if !cfg.Joins() {
		cfg.Join.Server = r.Server
	}
	if cfg.NodeName == "" {
		cfg.NodeName = r.NodeName
	}
	// membership.Prepare decides about another server or a kubeconfig.
	if server, err := config.ParseServer(cfg.Join.Server); err == nil && server == r.Server {
		r.Apply(cfg)
	}
	return nil
}

// joinCluster runs the host's part of joining a cluster and applies the cluster-wide settings to the config. It clears the join
// token. It does nothing on a node that is not a worker.
func joinCluster(ctx context.Context, n *Node) error {
	if !n.Config().Joins() {
		return nil
	}
	in := membership.Input{Config: n.Config(), Data: n.data, Token: n.joinToken, Log: n.log}
	n.joinToken = ""
	if m, err := preflight.ManifestOf(n.Config()); err == nil { // the preflight reports a missing manifest
		c, _ := m.Component(kubelet.Name)
		in.KubeletVersion = c.Version
	}
	record, err := membership.Prepare(ctx, in)
	if err != nil {
		return err
	}
	cfg := *n.Config()
	record.Apply(&cfg)
	n.cfg.Store(&cfg)
	return cfg.Validate()
}
