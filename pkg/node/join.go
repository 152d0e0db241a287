package node

import (
	"context"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/clusterjoin"
	"github.com/rootlessnode/rootlessnode/pkg/component/kubelet"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
	"github.com/rootlessnode/rootlessnode/pkg/preflight"
)

// rejoin makes the node of a data dir that belongs to a cluster a worker of it again, under the name that it has there, when
// cfg says nothing else. What the cluster's nodes agree on is then known before the cluster is asked.
func rejoin(cfg *config.NodeConfig, facts config.HostFacts) error {
	probe := *cfg
	probe.Complete(facts)
	r, err := clusterjoin.Load(layout.NewData(probe.DataDir))
	if err != nil || r == nil {
		return err
	}
	if !cfg.Joins() {
		cfg.Join.Server = r.Server
	}
	if cfg.NodeName == "" {
		cfg.NodeName = r.NodeName
	}
	// Another server, or a kubeconfig, is for clusterjoin.Prepare to judge.
	if server, err := config.ParseServer(cfg.Join.Server); err == nil && server == r.Server {
		r.Apply(cfg)
	}
	return nil
}

// joinCluster does a worker's part on the host, and takes over what its cluster agrees on. The token is used up by it.
func (n *Node) joinCluster(ctx context.Context) error {
	if !n.Config().Joins() {
		return nil
	}
	in := clusterjoin.Input{Config: n.Config(), Data: n.data, Token: n.joinToken, Log: n.log}
	n.joinToken = ""
	if m, err := preflight.ReadManifest(n.Config().ComponentsDir); err == nil { // the preflight says when there is none
		c, _ := m.Component(kubelet.Name)
		in.KubeletVersion = c.Version
	}
	record, err := clusterjoin.Prepare(ctx, in)
	if err != nil {
		return err
	}
	cfg := *n.Config()
	record.Apply(&cfg)
	n.cfg.Store(&cfg)
	return cfg.Validate()
}
