package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/pkg/node"
)

type metricsNode interface {
	Metrics(ctx context.Context) ([]byte, error)
}

var _ metricsNode = (*node.Node)(nil)

func newMetrics(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "metrics",
		Short: "Print the metrics of the node for Prometheus",
		Long: `Print the metrics of the node in the text format of Prometheus: its state, components,
conditions and forwarded ports. The node serves the same text at /metrics of its status
socket. kubectl top and rootlessnode top show the usage of pods.`,
		Args: arguments(0, 0),
		RunE: withNode(a, func(ctx context.Context, n metricsNode, _ []string) error {
			text, err := n.Metrics(ctx)
			if err != nil {
				return a.hintNotRunning(err)
			}
			_, err = a.out.Write(text)
			return err
		}),
	}
}
