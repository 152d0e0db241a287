package node

import (
	"errors"
	"time"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component/etcd"
	"github.com/rootlessnode/rootlessnode/internal/component/kubelet"
	"github.com/rootlessnode/rootlessnode/internal/datadir"
	"github.com/rootlessnode/rootlessnode/internal/preflight"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/parent"
)

// Snapshot is a copy of the state of a cluster. Every start with another minor version of Kubernetes or etcd takes one.
type Snapshot = datadir.Snapshot

// Snapshots has the operations on the snapshots of the cluster of one node. Its fields are the paths and the name of the node.
type Snapshots struct {
	Runtime RuntimePaths
	Data    DataPaths
	Name    string
}

// Snapshots returns the snapshots of the node's cluster.
func (n *Node) Snapshots() Snapshots { return Snapshots{n.rt, n.data, n.Config().Name} }

// List returns the snapshots, the newest first.
func (s Snapshots) List() ([]Snapshot, error) { return datadir.Snapshots(s.Data) }

// Restore replaces the state of the cluster by that of the snapshot called name. It takes a snapshot of the present state before. The node
// must be stopped, and must be started with the versions of the snapshot afterwards. Restore can be repeated after an interruption.
//
// Errors: of class errdefs.ErrAlreadyRunning if the node is running; of class errdefs.ErrConfig if there is no such snapshot; of class
// errdefs.ErrPreflight if there is no space.
func (s Snapshots) Restore(name string) (Snapshot, error) {
	return parent.RestoreSnapshot(s.Runtime, s.Data, s.Name, name)
}

// Delete removes the snapshot called name.
func (s Snapshots) Delete(name string) error { return datadir.DeleteSnapshot(s.Data, name) }

// versionsOf returns the versions of the programs that a node with config cfg runs. They are empty if the components have no manifest, which
// the preflight reports.
func versionsOf(cfg *config.NodeConfig) datadir.Versions {
	v := datadir.Versions{Rootlessnode: Version}
	if m, err := preflight.ManifestOf(cfg); err == nil {
		kubernetes, _ := m.Component(kubelet.Name)
		datastore, _ := m.Component(etcd.Name)
		v.Kubernetes, v.Etcd = kubernetes.Version, datastore.Version
	}
	return v
}

// checkKubernetesVersion returns an error if the components do not include the version of Kubernetes that the config selects.
func checkKubernetesVersion(cfg *config.NodeConfig) error {
	if cfg.KubernetesVersion == "" {
		return nil
	}
	if _, err := preflight.ManifestOf(cfg); errors.Is(err, errdefs.ErrConfig) {
		return err
	}
	return nil // the preflight reports other faults
}

// checkVersions compares the versions of the programs that were used with the data, and the current ones. Kubernetes and etcd support
// neither the data of a newer minor version, nor an upgrade that skips one.
func checkVersions(n *Node, was, now datadir.Versions) error {
	return errors.Join(
		checkVersion(n, "Kubernetes", was.Kubernetes, now.Kubernetes),
		checkVersion(n, etcd.Name, was.Etcd, now.Etcd),
	)
}

func checkVersion(n *Node, program, was, now string) error {
	steps, known := datadir.Steps(was, now)
	switch {
	case !known || steps == 0 || steps == 1:
		return nil
	case steps < 0:
		return errdefs.Errorf("%s %s cannot use the data of node %q, which was last used with the newer minor version %s",
			program, now, n.Config().Name, was).With(useVersion(n, "# continue with", program, datadir.Minor(was))).With(wayBack(n, program, now)).
			Hint("# or delete the cluster with all its data:").Do(errdefs.DeleteData)
	}
	return errdefs.Errorf("%s %s cannot upgrade the data of node %q by more than one minor version from %s", program, now, n.Config().Name, was).
		With(useVersion(n, "# first start the node with", program, datadir.Next(was))).
		Hint("# or delete the cluster with all its data:").Do(errdefs.DeleteData)
}

// useVersion returns how to start the node with a minor version of a program.
func useVersion(n *Node, text, program, minor string) errdefs.Hint {
	text += " " + program + " v" + minor
	if program == etcd.Name {
		return errdefs.Text(text + ", which is in the components of another release (componentsDir)")
	}
	hint := errdefs.Text(text + ":")
	if !preflight.HasKubernetes(n.Config().ComponentsDir, minor) {
		hint = hint.Text("make components KUBERNETES=" + minor + "    # or install a release that contains it")
	}
	return hint.Do(errdefs.Start, "kubernetesVersion=v"+minor)
}

// wayBack returns how to return to the newest snapshot that the version now of a program can use, if there is one.
func wayBack(n *Node, program, now string) errdefs.Hint {
	all, _ := n.Snapshots().List() // a damaged snapshot cannot be restored
	for _, s := range all {
		version := s.Versions.Kubernetes
		if program == etcd.Name {
			version = s.Versions.Etcd
		}
		if steps, ok := datadir.Steps(version, now); ok && steps == 0 {
			hint := errdefs.Text("# or return to the snapshot of "+s.Created.Local().Format(time.DateTime)+"; later changes in the cluster are lost:").
				Do(errdefs.RestoreSnapshot, s.Name)
			if program != etcd.Name {
				hint = hint.Do(errdefs.Start, "kubernetesVersion=v"+datadir.Minor(now))
			}
			return hint
		}
	}
	return nil
}
