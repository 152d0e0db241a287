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
	f     *Forwarder
	known chan struct{} // closed when the Services are known
	last  time.Time     // only used by run

	// Guarded by Forwarder.mu.
	relevant map[Key]struct{}
	more     chan struct{} // closed when further Services become relevant; nil if that happened or is not awaited
}

// want notes that a Service became relevant. Forwarder.mu is held.
func (q *endpointQuery) want(key Key, now expansion) {
	if _, there := q.relevant[key]; q.more != nil && !there && len(now.forwards) > 0 {
		close(q.more)
		q.more = nil
	}
}

// next waits until the Services are known. It returns those whose endpoints are relevant, or nil for all, and a channel
// that is closed when further ones become relevant.
func (q *endpointQuery) next(ctx context.Context) (services []Key, more <-chan struct{}, err error) {
	select {
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	case <-q.known:
	}
	select {
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	case <-time.After(time.Until(q.last.Add(queryEvery))):
	}
	q.last = time.Now()
	q.f.mu.Lock()
	defer q.f.mu.Unlock()
	q.relevant, q.more = map[Key]struct{}{}, nil
	services = []Key{}
	for key, s := range q.f.in.services {
		if len(s.forwards) > 0 {
			q.relevant[key] = struct{}{}
			services = append(services, key)
		}
	}
	if len(services) > maxQueried {
		return nil, nil, nil
	}
	q.more = make(chan struct{})
	slices.SortFunc(services, func(x, y Key) int { return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name)) })
	return services, q.more, nil
}

// run runs the source while there are relevant Services, and restarts it when the set grows.
func (q *endpointQuery) run(ctx context.Context) error {
	for {
		services, more, err := q.next(ctx)
		if err != nil {
			return err
		}
		if services != nil && len(services) == 0 {
			endpointSink{&q.f.in, func() {}}.Replace(nil)
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-more:
			}
			continue
		}
		if again, err := q.runFor(ctx, services, more); !again {
			return err
		}
	}
}

// runFor runs the source until it ends, or until it has listed the endpoints of services and further ones became
// relevant.
func (q *endpointQuery) runFor(ctx context.Context, services []Key, more <-chan struct{}) (again bool, err error) {
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
	err = q.f.o.Endpoints.Run(run, services, endpointSink{&q.f.in, sync.OnceFunc(func() { close(listed) })})
	again = run.Err() != nil && ctx.Err() == nil
	cancel()
	wg.Wait()
	return again, err
}
