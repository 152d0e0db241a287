package noderole

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/coredns"
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

const (
	// restoreDelay is the delay between a change and the restoration, so that simultaneous changes are restored together.
	restoreDelay = 300 * time.Millisecond
	// maxRestoreDelay limits the delay, which doubles each time as long as another client changes objects within quiet.
	maxRestoreDelay = 10 * time.Second
	quiet           = time.Minute
)

// restore applies the objects again after changes by other clients until ctx ends.
func (a *clusterAddons) restore(ctx context.Context, c *kubeapi.Client, changes *addonChanges) {
	delay, last := restoreDelay, time.Time{}
	wait := func(d time.Duration) bool {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(d):
			return true
		}
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-changes.arrived:
		}
		if time.Since(last) > quiet {
			delay = restoreDelay
		}
		if !wait(delay) {
			return
		}
		found := changes.take()
		if !found.needed() {
			continue
		}
		_, applied, err := a.apply(ctx, c, found.custom)
		if err == nil && found.customChanged {
			err = replaceFailedDNS(ctx, c)
		}
		if ctx.Err() != nil {
			return
		}
		changes.done(applied, found.custom, err)
		if err != nil {
			a.log.WithError(err).Warn("restore the objects of the node")
		}
		a.report(found.foreign)
		delay, last = min(2*delay, maxRestoreDelay), time.Now()
	}
}

// replaceFailedDNS deletes the pods of the DNS that fail, after their configuration has changed. Their Deployment creates others at
// once, while the kubelet would wait up to five minutes before it starts a failed container again.
func replaceFailedDNS(ctx context.Context, c *kubeapi.Client) error {
	pods, err := c.LabelledPods(ctx, coredns.Namespace, coredns.Selector)
	errs := []error{err}
	for i := range pods {
		if _, broken := podProblem(&pods[i]); broken {
			errs = append(errs, c.DeletePod(ctx, coredns.Namespace, pods[i].Name))
		}
	}
	return errors.Join(errs...)
}

// report logs restored objects and publishes an event for each, because the user may have changed them.
func (a *clusterAddons) report(foreign []kubeapi.ObjectState) {
	for _, o := range foreign {
		change := "changed"
		if o.Version == "" {
			change = "deleted"
		}
		text := fmt.Sprintf("restored %s, which was %s", o.ObjectID, change)
		a.log.Info(text)
		a.hub.Publish(status.Event{Component: component.UnitAddons, Reason: text})
	}
}

// addonChanges collects changes that other clients make to the objects and to the user's part of the DNS configuration.
type addonChanges struct {
	arrived chan struct{} // has a value after a change

	mu      sync.Mutex
	applied map[kubeapi.ObjectID]kubeapi.ObjectState
	current map[kubeapi.ObjectID]kubeapi.ObjectState // reported since the last call of take
	// custom is the user's part of the DNS configuration. usedCustom was applied.
	custom, usedCustom map[string]string
	failed             bool // the last restoration failed
}

func newAddonChanges(applied []kubeapi.ObjectState, custom map[string]string) *addonChanges {
	o := &addonChanges{
		arrived: make(chan struct{}, 1), applied: map[kubeapi.ObjectID]kubeapi.ObjectState{},
		current: map[kubeapi.ObjectID]kubeapi.ObjectState{}, custom: custom,
	}
	o.done(applied, custom, nil)
	return o
}

func (o *addonChanges) setObject(s kubeapi.ObjectState) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.current[s.ObjectID] = s
	o.notify()
}

func (o *addonChanges) setCustom(data map[string]string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.custom = data
	o.notify()
}

func (o *addonChanges) notify() {
	select {
	case o.arrived <- struct{}{}:
	default: // not yet taken
	}
}

// foundChanges are the changes since the last restoration.
type foundChanges struct {
	foreign []kubeapi.ObjectState // changed by other clients
	// custom is the user's part of the DNS configuration.
	custom        map[string]string
	customChanged bool
	failed        bool // the last restoration failed
}

// needed reports whether the objects must be applied again.
func (f foundChanges) needed() bool { return f.failed || f.customChanged || len(f.foreign) > 0 }

// take returns the changes since the last call.
func (o *addonChanges) take() foundChanges {
	o.mu.Lock()
	defer o.mu.Unlock()
	f := foundChanges{custom: o.custom, customChanged: !maps.Equal(o.custom, o.usedCustom), failed: o.failed}
	for id, s := range o.current {
		if !s.SameSpec(o.applied[id]) {
			f.foreign = append(f.foreign, s)
		}
	}
	clear(o.current)
	return f
}

// done records the result of applying the objects.
func (o *addonChanges) done(applied []kubeapi.ObjectState, custom map[string]string, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, s := range applied {
		o.applied[s.ObjectID] = s
	}
	o.usedCustom, o.failed = custom, err != nil
	if o.failed {
		o.notify()
	}
}
