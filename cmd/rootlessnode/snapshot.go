package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/internal/datadir"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/node"
)

// snapshotNode is the part of node.Node for snapshots.
type snapshotNode interface {
	Snapshots() node.Snapshots
}

var _ snapshotNode = (*node.Node)(nil)

func newSnapshot(a *app) *cobra.Command {
	return group(&cobra.Command{
		Use: "snapshot", Short: "List, restore and delete the snapshots that upgrades of Kubernetes take",
		Long: `List, restore and delete snapshots of the cluster's state. "rootlessnode up" takes one
before it upgrades the data to another minor version of Kubernetes or etcd. The two
newest snapshots are kept.`,
	}, newSnapshotList(a), newSnapshotRestore(a), newSnapshotDelete(a))
}

// reportUpgrade prints how to return to the former version if the start that began at a time has upgraded the data.
func (a *app) reportUpgrade(n snapshotNode, began time.Time) {
	all, _ := n.Snapshots().List() // damaged snapshots do not concern this start
	if len(all) == 0 || all[0].Created.Before(began) {
		return
	}
	a.printf("\nThe data was upgraded from Kubernetes %s. To return to it, stop the node, then:\n  %s\n  %s\n", all[0].Versions.Kubernetes,
		a.command("snapshot restore "+all[0].Name), a.startCommand(all[0]))
}

// startCommand returns the command that starts the node with the version of a snapshot.
func (a *app) startCommand(s node.Snapshot) string {
	return a.commandOf(errdefs.Step{Action: errdefs.Start, Args: []string{"kubernetesVersion=v" + datadir.Minor(s.Versions.Kubernetes)}})
}

func newSnapshotList(a *app) *cobra.Command {
	return a.withOutput(&cobra.Command{
		Use:   "list",
		Short: "List the snapshots, the newest first",
		RunE: withNode(a, func(_ context.Context, n snapshotNode, _ []string) error {
			all, err := n.Snapshots().List()
			rows := [][]string{{"NAME", "CREATED", "KUBERNETES", "ETCD", "SIZE"}}
			for _, s := range all {
				rows = append(rows, []string{
					s.Name, s.Created.Local().Format(time.DateTime), s.Versions.Kubernetes, s.Versions.Etcd, bytesText(uint64(s.Size)),
				})
			}
			a.show(append([]node.Snapshot{}, all...), table(rows)) // an empty list, not null
			return err
		}),
	})
}

func newSnapshotRestore(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "restore NAME",
		Short: "Replace the state of the cluster of the stopped node by that of a snapshot",
		Long: `Replace the state of the cluster by that of a snapshot. The node must be stopped. Changes
in the cluster since the snapshot are lost, but the present state is kept as another
snapshot. Files of volumes and images are not part of a snapshot and stay as they are.

Start the node with the version of Kubernetes of the snapshot afterwards. With a newer
one, "rootlessnode up" upgrades the data again.`,
		Example: `  rootlessnode snapshot list
  rootlessnode down
  rootlessnode snapshot restore v1.36.3-20261201T120000.000Z
  rootlessnode up --set kubernetesVersion=v1.36`,
		Args: arguments(1, 1),
		RunE: withNode(a, func(_ context.Context, n snapshotNode, args []string) error {
			s, err := n.Snapshots().Restore(args[0])
			if err != nil {
				return err
			}
			a.printf("restored the cluster's state of %s\n", s.Created.Local().Format(time.DateTime))
			a.printf("start the node with: %s\n", a.startCommand(s))
			return nil
		}),
	}
}

func newSnapshotDelete(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "delete NAME",
		Short: "Delete a snapshot",
		Args:  arguments(1, 1),
		RunE: withNode(a, func(_ context.Context, n snapshotNode, args []string) error {
			if err := n.Snapshots().Delete(args[0]); err != nil {
				return err
			}
			a.printf("snapshot %s deleted\n", args[0])
			return nil
		}),
	}
}
