package noderole

import (
	"context"
	"fmt"

	"github.com/sirupsen/logrus"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/apiserver"
	"github.com/rootlessnode/rootlessnode/internal/datadir"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// recordIdentity completes the record of the data dir with the properties of the node that are known only inside. It returns warnings
// for the user.
func recordIdentity(env component.Env, data layout.Data) (warnings []string, err error) {
	var keys []string
	if component.EmbeddedControlPlane(env.Config) {
		if _, keys, err = apiserver.SecretKeys(env.Config, data); err != nil {
			return nil, fmt.Errorf("read the encryption configuration: %w", err)
		}
	}
	err = datadir.UpdateIdentity(data, func(i *datadir.Identity) {
		now := env.Snapshotter
		if i.Snapshotter != "" && i.Snapshotter != now {
			warnings = append(warnings, fmt.Sprintf("the snapshotter was %s and is now %s: images are unpacked again for it", i.Snapshotter, now))
		}
		i.Snapshotter, i.EncryptionKey = now, ""
		if len(keys) > 0 {
			i.EncryptionKey = keys[0]
		}
	})
	return warnings, err
}

// formerNodes removes the Node objects of a node whose name the user has changed.
type formerNodes struct {
	data   layout.Data
	log    logrus.FieldLogger
	client clientFunc
}

// any reports whether there are names to remove.
func (f *formerNodes) any() bool {
	i, err := datadir.ReadIdentity(f.data)
	return err == nil && len(i.FormerNodes) > 0
}

// Run removes the Node objects together with their pods, so that controllers replace the pods at once.
func (f *formerNodes) Run(ctx context.Context) error {
	i, err := datadir.ReadIdentity(f.data)
	if err != nil {
		return err
	}
	c, err := f.client()
	if err != nil {
		return err
	}
	for _, name := range i.FormerNodes {
		if err := c.DeleteNode(ctx, name); err != nil {
			return err
		}
		removed, err := c.RemovePods(ctx, name)
		if err != nil {
			return err
		}
		f.log.Infof("deleted the former Node object %s of this node and its %d pods", name, removed)
	}
	return datadir.UpdateIdentity(f.data, func(i *datadir.Identity) { i.FormerNodes = nil })
}
