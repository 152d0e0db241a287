package noderole

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sync"

	"github.com/sirupsen/logrus"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/catalogue"
	"github.com/rootlessnode/rootlessnode/internal/component/coredns"
	"github.com/rootlessnode/rootlessnode/internal/component/metricsserver"
	"github.com/rootlessnode/rootlessnode/internal/component/resources"
	"github.com/rootlessnode/rootlessnode/internal/component/storage"
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// clusterAddons keeps rootlessnode's objects in a cluster that it created up to date. It restores objects that another client
// deletes or changes while the node runs.
type clusterAddons struct {
	env component.Env
	// authority is the path of the certificate of the cluster's authority.
	authority string
	client    clientFunc
	warn      func(...string)
	log       logrus.FieldLogger
	hub       *status.Hub
}

// Run applies the objects and is ready then. It restores them until ctx ends.
func (a *clusterAddons) Run(ctx context.Context, ready func()) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	custom, err := c.ConfigMap(ctx, coredns.Namespace, coredns.Custom)
	if err != nil {
		return err
	}
	manifests, applied, err := a.apply(ctx, c, custom)
	if err := errors.Join(err, a.removeObsolete(ctx, c)); err != nil {
		return err
	}
	ready()
	changes := newAddonChanges(applied, custom)
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() { _ = c.WatchObjects(ctx, manifests, resources.Selector, changes.setObject) })
	watching.Go(func() { _ = c.WatchConfigMap(ctx, coredns.Namespace, coredns.Custom, changes.setCustom) })
	a.restore(ctx, c, changes)
	return nil
}

// apply applies the roles of rootlessnode's users and the cluster DNS. customDNS is the user's part of its configuration.
// Applying unchanged manifests has no effect.
func (a *clusterAddons) apply(ctx context.Context, c *kubeapi.Client, customDNS map[string]string) ([]byte, []kubeapi.ObjectState, error) {
	ca, err := os.ReadFile(a.authority)
	if err != nil {
		return nil, nil, err
	}
	env := a.env
	env.CustomDNS, env.ClusterCA = customDNS, ca
	manifests, err := resources.Manifests(env)
	if err == nil && env.Config.Serves() {
		var more []byte
		more, err = joinManifests(env)
		manifests = append(manifests, more...)
	}
	if err == nil {
		manifests, err = resources.Label(manifests)
	}
	if err != nil {
		return nil, nil, err
	}
	applied, err := c.Apply(ctx, manifests)
	return manifests, applied, err
}

// removeObsolete deletes the objects that an earlier version or an earlier configuration left in the cluster.
func (a *clusterAddons) removeObsolete(ctx context.Context, c *kubeapi.Client) error {
	if !a.env.Config.Serves() {
		if _, err := c.Remove(ctx, resources.NodePolicy()); err != nil {
			return err
		}
	}
	if a.env.Config.Storage == config.StorageNone { // otherwise claims would wait for ever
		if err := c.RemoveStorageClass(ctx, storage.Class, storage.Provisioner); err != nil {
			return err
		}
	}
	if !a.env.Config.Metrics.Enabled {
		if _, err := c.Remove(ctx, metricsserver.Obsolete()); err != nil {
			return err
		}
	}
	if err := a.runtimeClasses(ctx, c); err != nil {
		return err
	}
	removed, err := c.Remove(ctx, resources.Obsolete())
	if removed && err == nil {
		a.warn("deleted the shared tokens of earlier versions: upgrade rootlessnode on workers of earlier versions, then stop and start them")
	}
	return err
}

// waitRoles waits until the control plane's components have their roles. Before that their requests would be denied,
// and they pause for a long time after a denied request.
func (a *clusterAddons) waitRoles(ctx context.Context) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	var bindings []string
	for _, e := range catalogue.Enabled(a.env.Config) {
		bindings = append(bindings, e.Bindings...)
	}
	return supervisor.Poll(readyPoll, "the default roles", func(ctx context.Context) error {
		return c.HasRoleBindings(ctx, bindings...)
	})(ctx)
}

// joinManifests returns the manifests that joining nodes need in a cluster created by rootlessnode.
func joinManifests(env component.Env) ([]byte, error) {
	const foreign = false
	rbac, rbacErr := resources.JoinRBAC(env.Config, foreign)
	server := fmt.Sprintf("https://%s:%d", env.PublicIP, env.Config.API.Port)
	info, infoErr := resources.ClusterInfo(server, env.ClusterCA)
	facts, factsErr := resources.ClusterFacts(env)
	if err := errors.Join(rbacErr, infoErr, factsErr); err != nil {
		return nil, err
	}
	var out []byte
	for _, part := range [][]byte{rbac, info, facts} {
		out = append(append(out, "---\n"...), part...)
	}
	return out, nil
}

// runtimeClasses creates a RuntimeClass for each OCI runtime of this node, and deletes those of runtimes that it no longer has. Other
// RuntimeClasses are left alone.
func (a *clusterAddons) runtimeClasses(ctx context.Context, c *kubeapi.Client) error {
	labels := resources.Labels()
	for _, name := range slices.Sorted(maps.Keys(a.env.OCIRuntimes)) {
		if err := c.EnsureRuntimeClass(ctx, name, labels); err != nil {
			return err
		}
	}
	return c.RemoveRuntimeClasses(ctx, resources.Selector, func(name string) bool { return a.env.OCIRuntimes[name].Path == "" })
}
