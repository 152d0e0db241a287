package portfwd

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"
)

const (
	// maxQueried is the limit of Services whose endpoints are watched by name, because the names are part of a URL. With
	// more, the endpoints of all Services are watched.
	maxQueried = 64
	// queryEvery is the least interval between two queries, so that Services that are created together are queried together.
	queryEvery = 100 * time.Millisecond
)

// endpointQuery is the set of Services whose endpoints are relevant for a forward. It keeps the node from watching the
// endpoints of all other Services, which are most of a cluster.
type endpointQuery struct {
	known chan struct{} // closed when the Services are known
	last  time.Time     // only used by runEndpoints

	// Guarded by Forwarder.mu.
	relevant map[Key]struct{}
	more     chan struct{} // closed when further Services become relevant; nil if that happened or is not awaited
}

// want notes that a Service became relevant. Forwarder.mu is held.
func (a *endpointQuery) want(key Key, now expansion) {
	if _, there := a.relevant[key]; a.more != nil && !there && len(now.forwards) > 0 {
		close(a.more)
		a.more = nil
	}
}

// nextQuery waits until the Services are known. It returns those whose endpoints are relevant, or nil for all, and a channel
// that is closed when further ones become relevant.
func (f *Forwarder) nextQuery(ctx context.Context) (services []Key, more <-chan struct{}, err error) {
	a := &f.query
	select {
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	case <-a.known:
	}
	select {
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	case <-time.After(time.Until(a.last.Add(queryEvery))):
	}
	a.last = time.Now()
	f.mu.Lock()
	defer f.mu.Unlock()
	a.relevant, a.more = map[Key]struct{}{}, nil
	services = []Key{}
	for key, s := range f.services {
		if len(s.forwards) > 0 {
			a.relevant[key] = struct{}{}
			services = append(services, key)
		}
	}
	if len(services) > maxQueried {
		return nil, nil, nil
	}
	a.more = make(chan struct{})
	slices.SortFunc(services, func(x, y Key) int { return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name)) })
	return services, a.more, nil
}

// runEndpoints runs the source while there are relevant Services, and restarts it when the set grows.
func (f *Forwarder) runEndpoints(ctx context.Context) error {
	for {
		services, more, err := f.nextQuery(ctx)
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

// runEndpointsOf runs the source until it ends, or until it has listed the endpoints of services and further ones became
// relevant.
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
