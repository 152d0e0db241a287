package node

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/apiserver"
	"github.com/rootlessnode/rootlessnode/internal/datadir"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// formerIdentity returns the identity of the node whose data is in the data dir of cfg: that of the record, or what an earlier version,
// which recorded none, left in the data. It is empty if there is no data of the node. deleting is set if the removal of the data was
// interrupted.
func formerIdentity(cfg *config.NodeConfig) (was datadir.Identity, deleting bool) {
	data := layout.NewData(cfg.DataDir)
	r, err := datadir.ReadRecord(data, os.Getuid())
	switch {
	case err == nil && r.Name == cfg.Name && r.Deleting:
		return datadir.Identity{}, true
	case err == nil && r.Name == cfg.Name:
		return adopt(r.Identity, data), false
	case errors.Is(err, fs.ErrNotExist):
		return adopt(datadir.Identity{}, data), false
	}
	return datadir.Identity{}, false // Place.Check reports the error
}

// recall sets the fields that cfg leaves open and that must not change during the life of the data.
func recall(cfg *config.NodeConfig, was datadir.Identity) {
	cfg.NodeName = cmp.Or(cfg.NodeName, was.NodeName)
	if was.Networks != nil && was.Networks.ServiceCIDR == cfg.Cluster.ServiceCIDR {
		cfg.Cluster.DNSAddress = cmp.Or(cfg.Cluster.DNSAddress, was.Networks.DNSAddress)
	}
}

// hasCluster reports whether the data dir contains the state of a cluster.
func hasCluster(data layout.Data) bool {
	state, _ := data.OnHost(layout.InsideEtcd)
	entries, err := os.ReadDir(state)
	return err == nil && len(entries) > 0
}

// checkIdentity returns an error of class errdefs.ErrConfig with all settings of the node that its data does not permit. asked is the
// config of the caller, without defaults.
func checkIdentity(n *Node, asked *config.NodeConfig, was datadir.Identity) error {
	cfg := n.Config()
	if !component.EmbeddedControlPlane(cfg) || !hasCluster(n.data) {
		return nil
	}
	return errdefs.Class(errdefs.ErrConfig, errors.Join(
		checkNetworks(n, asked, was),
		checkVersions(n, was.Versions, versionsOf(cfg)),
		checkEncryption(n, was.EncryptionKey),
	))
}

func checkNetworks(n *Node, asked *config.NodeConfig, was datadir.Identity) error {
	now := datadir.NetworksOf(n.Config())
	former := foundNetworks(n.data, now)
	if was.Networks != nil {
		former = *was.Networks
	}
	if asked.Cluster.DNSAddress == "" {
		now.DNSAddress = former.DNSAddress // it follows the range of the Services
	}
	var faults []error
	keep := errdefs.Step{Action: errdefs.Start}
	for _, c := range former.Changes(now) {
		faults = append(faults, fmt.Errorf("%s: %s: the cluster of node %q was created with %s, and this cannot be changed",
			c.Field, c.Now, n.Config().Name, c.Was))
		if !strings.Contains(c.Was, " ") { // a value, not the description of one
			keep.Args = append(keep.Args, c.Field+"="+c.Was)
		}
	}
	return errdefs.WithSteps(errors.Join(faults...), append(errdefs.Text("# keep the former values:"), keep).
		Text("# or delete the cluster with all its data:").Do(errdefs.DeleteData))
}

// checkEncryption checks that the API server can still read Secrets, which were written with the key was.
func checkEncryption(n *Node, was string) error {
	file, keys, err := apiserver.SecretKeys(n.Config(), n.data)
	if was == "" || err == nil && (len(keys) == 0 || slices.Contains(keys, was)) {
		return nil
	}
	var noFile *fs.PathError
	switch {
	case err == nil:
		err = fmt.Errorf("its keys are %s", strings.Join(keys, ", "))
	case errors.As(err, &noFile):
		err = noFile.Err // without the path
	}
	return errdefs.Errorf("encryption: the Secrets of node %q were written with the key %s, which is not in %s: %w", n.Config().Name, was, file, err).
		Hint("# restore the file from a backup, or add the former key to it after the new one").
		Hint("# or delete the cluster with all its data:").Do(errdefs.DeleteData)
}

// recordIdentity records the properties of the node on which its data depends from now on. It reports if the node keeps the name of its
// Node object although the host has another name now.
func recordIdentity(n *Node) error {
	cfg := n.Config()
	return datadir.UpdateIdentity(n.data, func(i *datadir.Identity) {
		*i = adopt(*i, n.data)
		if i.NodeName != cfg.NodeName || n.namedByUser || i.HostName == "" {
			i.Rename(cfg.NodeName, n.host)
		}
		if i.HostName != n.host {
			n.log.Warnf("the host is now called %q and was called %q, but the node keeps the name %q of its Node object; to rename it, set nodeName",
				n.host, i.HostName, i.NodeName)
		}
		if i.Runtime != "" && i.Runtime != cfg.CRI.Runtime {
			n.log.Warnf("the container runtime was %s and is now %s, which has its own storage: imported images are missing there, and others are pulled again",
				i.Runtime, cfg.CRI.Runtime)
			i.Snapshotter = ""
		}
		i.Runtime = cfg.CRI.Runtime
		switch now := datadir.NetworksOf(cfg); {
		case cfg.Joins():
			i.Networks, i.FormerNodes = nil, nil // the cluster has the networks, and a worker may not remove Node objects
		case i.Networks != nil && hasCluster(n.data):
			now = i.Networks.With(now)
			fallthrough
		default:
			i.Networks = &now
		}
	})
}
