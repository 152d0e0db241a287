package parent

import (
	"context"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/rootlessnode/rootlessnode/internal/descriptors"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/relay"
	"github.com/rootlessnode/rootlessnode/pkg/portdriver"
)

const (
	// descriptorsInterval is the interval at which the open descriptors are counted.
	descriptorsInterval = 10 * time.Second
	// Descriptors are scarce from fewAt percent of the limit, until less than enoughAt percent are open. The port driver leaves an
	// eighth of the limit to the rest of the process.
	fewAt, enoughAt = 75, 65
)

// forwarding publishes the state of the forwarded ports for the node role.
type forwarding struct {
	path string
	log  logrus.FieldLogger

	mu      sync.Mutex
	content layout.Forwarding
}

// setFaults publishes the ports that currently accept no connections.
func (f *forwarding) setFaults(faults []portdriver.Fault) error {
	list := []layout.PortFault{}
	for _, p := range faults {
		list = append(list, layout.PortFault{
			HostIP: p.Spec.ParentIP, HostPort: p.Spec.ParentPort, Proto: p.Spec.Proto, Reason: p.Reason, Message: p.Message,
		})
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.content.Faults = list
	return f.write()
}

// setDescriptors publishes the use of descriptors if they have become scarce or are no longer scarce.
func (f *forwarding) setDescriptors(use layout.DescriptorUse) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	percent, scarce := 100*use.Open/use.Limit, f.content.Descriptors != nil
	switch {
	case !scarce && percent >= fewAt:
		f.content.Descriptors = &use
	case scarce && percent < enoughAt:
		f.content.Descriptors = nil
	default:
		return nil
	}
	return f.write()
}

// write is called with f.mu held.
func (f *forwarding) write() error {
	err := layout.WriteJSON(f.path, f.content)
	if err != nil {
		f.log.WithError(err).Warn("record the state of the forwarded ports")
	}
	return err
}

// start counts the descriptors of this process periodically until stop is called.
func (f *forwarding) start(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var counting sync.WaitGroup
	counting.Go(func() { f.count(ctx) })
	return func() {
		cancel()
		counting.Wait()
	}
}

func newForwarding(o Options) *forwarding {
	return &forwarding{path: o.Runtime.PortFaults(), log: o.Log, content: layout.Forwarding{Faults: []layout.PortFault{}}}
}

func (f *forwarding) count(ctx context.Context) {
	tick := time.NewTicker(descriptorsInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		open, err := descriptors.Open()
		limit, limitErr := relay.Limit()
		if err == nil && limitErr == nil {
			_ = f.setDescriptors(layout.DescriptorUse{Open: open, Limit: limit}) // logged, and repeated at the next change
		}
	}
}
