package noderole

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/rootlessnode/rootlessnode/internal/component"
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
		foreign, custom, needed := changes.take()
		if !needed {
			continue
		}
		_, applied, err := a.apply(ctx, c, custom)
		if ctx.Err() != nil {
			return
		}
		changes.done(applied, custom, err)
		if err != nil {
			a.log.WithError(err).Warn("restore the objects of the node")
		}
		a.report(foreign)
		delay, last = min(2*delay, maxRestoreDelay), time.Now()
	}
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

// take returns the objects that other clients changed since the last call, the user's part of the DNS configuration, and
// whether the objects must be applied again.
func (o *addonChanges) take() (foreign []kubeapi.ObjectState, custom map[string]string, needed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for id, s := range o.current {
		if !s.SameSpec(o.applied[id]) {
			foreign = append(foreign, s)
		}
	}
	clear(o.current)
	return foreign, o.custom, o.failed || len(foreign) > 0 || !maps.Equal(o.custom, o.usedCustom)
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
