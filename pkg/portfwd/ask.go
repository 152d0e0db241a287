package portfwd

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// maxAsked is how many Services endpoints are asked of by name; beyond it, of all. Their names go into a URL.
	maxAsked = 64
	// askEvery bounds how often they are asked for anew, so that Services which come together are asked for together.
	askEvery = 100 * time.Millisecond
)

// question is of which Services the endpoints decide about a forward. Others' endpoints, in a cluster those of nearly all
// Services, need not be told to every node.
type question struct {
	known chan struct{} // closed when the Services were told once
	last  time.Time     // used by runEndpoints alone

	// Guarded by Forwarder.mu.
	asked map[Key]struct{}
	more  chan struct{} // closed when others are wanted; nil if they are or nobody waits
}

// want notes what a Service asks for. Forwarder.mu is held.
func (a *question) want(key Key, now expansion) {
	if _, there := a.asked[key]; a.more != nil && !there && len(now.forwards) > 0 {
		close(a.more)
		a.more = nil
	}
}

// nextAsk waits for the Services and says whose endpoints matter, nil for all, and when there are others.
func (f *Forwarder) nextAsk(ctx context.Context) (services []Key, more <-chan struct{}, err error) {
	a := &f.asking
	select {
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	case <-a.known:
	}
	select {
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	case <-time.After(time.Until(a.last.Add(askEvery))):
	}
	a.last = time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	a.asked, a.more = map[Key]struct{}{}, nil
	services = []Key{}
	for key, s := range f.services {
		if len(s.forwards) > 0 {
			a.asked[key] = struct{}{}
			services = append(services, key)
		}
	}
	if len(services) > maxAsked {
		return nil, nil, nil
	}
	a.more = make(chan struct{})
	slices.SortFunc(services, func(x, y Key) int { return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name)) })
	return services, a.more, nil
}

// runEndpoints runs the source for as long as there is somebody to ask about, and anew when there are others.
func (f *Forwarder) runEndpoints(ctx context.Context) error {
	for {
		services, more, err := f.nextAsk(ctx)
		if err != nil {
			return err
		}
		if services != nil && len(services) == 0 {
			endpointSink{f, func() {}}.Replace(nil)
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-more:
			}
			continue
		}
		if again, err := f.runEndpointsOf(ctx, services, more); !again {
			return err
		}
	}
}

// runEndpointsOf runs the source until it ends, or until it has told all of these services and there are more.
func (f *Forwarder) runEndpointsOf(ctx context.Context, services []Key, more <-chan struct{}) (again bool, err error) {
	run, cancel := context.WithCancel(ctx)
	listed := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for _, due := range []<-chan struct{}{listed, more} {
			select {
			case <-run.Done():
				return
			case <-due:
			}
		}
		cancel()
	})
	err = f.o.Endpoints.Run(run, services, endpointSink{f, sync.OnceFunc(func() { close(listed) })})
	again = run.Err() != nil && ctx.Err() == nil
	cancel()
	wg.Wait()
	return again, err
}
