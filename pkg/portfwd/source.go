package portfwd

import (
	"context"
	"time"
)

// runSource runs one source until ctx ends and restarts it when it fails. While it is not running, everything stays as it
// is.
func (f *Forwarder) runSource(ctx context.Context, what string, run func(context.Context) error) {
	p := backoffFor(ReasonFailed)
	for delay := p.first; ; delay = min(2*delay, p.limit) {
		err := run(ctx)
		if ctx.Err() != nil {
			return
		}
		f.o.Log.WithError(err).Warnf("the source of %s ended; restarting it", what)
		t := time.NewTimer(delay)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
	}
}

// serviceState is a Service and its expansion.
type serviceState struct {
	Service
	expansion
}

// podState is a pod and its expansion.
type podState struct {
	Pod
	expansion
}

// sink receives Services and expands them; Run processes the result.
type sink struct{ f *Forwarder }

func (s sink) Replace(all []Service) {
	s.f.change(func() {
		if !s.f.synced.services {
			close(s.f.query.known)
		}
		gone := s.f.services
		s.f.services, s.f.synced.services, s.f.remerge = make(map[Key]*serviceState, len(all)), true, true
		for _, svc := range all {
			s.f.putService(svc)
		}
		for key := range gone {
			s.f.publish(key)
		}
	})
}

func (s sink) Set(svc Service) { s.f.change(func() { s.f.putService(svc) }) }

func (s sink) Delete(namespace, name string) {
	s.f.change(func() {
		if old := s.f.services[Key{namespace, name}]; old != nil {
			s.f.deltas = append(s.f.deltas, delta{before: old.expansion})
			delete(s.f.services, Key{namespace, name})
		}
	})
}

// podSink receives pods.
type podSink struct{ f *Forwarder }

func (s podSink) Replace(all []Pod) {
	s.f.change(func() {
		s.f.pods, s.f.synced.pods, s.f.remerge = make(map[Key]*podState, len(all)), true, true
		for _, p := range all {
			s.f.putPod(p)
		}
	})
}

func (s podSink) Set(p Pod) { s.f.change(func() { s.f.putPod(p) }) }

func (s podSink) Delete(namespace, name string) {
	s.f.change(func() {
		if old := s.f.pods[Key{namespace, name}]; old != nil {
			s.f.deltas = append(s.f.deltas, delta{before: old.expansion})
			delete(s.f.pods, Key{namespace, name})
		}
	})
}

// endpointSink receives the endpoints of Services. Endpoints of unknown Services are recorded too, because either watch can
// be the first.
type endpointSink struct {
	f      *Forwarder
	listed func() // called after the first Replace
}

func (s endpointSink) Replace(all map[Key]Endpoints) {
	s.f.change(func() {
		s.f.endpoints, s.f.synced.endpoints, s.f.remerge = make(map[Key]Endpoints, len(all)), true, true
		for key, e := range all {
			s.f.endpoints[key] = e
		}
		for _, svc := range s.f.services {
			s.f.putService(svc.Service)
		}
	})
	s.listed()
}

func (s endpointSink) Set(key Key, e Endpoints) {
	s.f.change(func() {
		if e == (Endpoints{}) {
			delete(s.f.endpoints, key)
		} else {
			s.f.endpoints[key] = e
		}
		if svc := s.f.services[key]; svc != nil {
			s.f.putService(svc.Service)
		}
	})
}

func (f *Forwarder) putService(svc Service) {
	key := Key{svc.Namespace, svc.Name}
	var ready *Endpoints
	if f.o.Endpoints != nil {
		e := f.endpoints[key]
		ready = &e
	}
	now := expandService(svc, ready, f.o.Config)
	var before expansion
	if old := f.services[key]; old != nil {
		before = old.expansion
	}
	f.services[key] = &serviceState{svc, now}
	f.query.want(key, now)
	f.deltas = append(f.deltas, delta{before, now})
	f.publish(key)
}

func (f *Forwarder) putPod(p Pod) {
	key, now := Key{p.Namespace, p.Name}, expandPod(p, f.o.Config)
	var before expansion
	if old := f.pods[key]; old != nil {
		before = old.expansion
	}
	f.pods[key] = &podState{p, now}
	f.deltas = append(f.deltas, delta{before, now})
}

// SetConfig replaces the config. Forwards that are the same in both stay open. It is safe for concurrent use.
func (f *Forwarder) SetConfig(c Config) {
	c = c.normal()
	c.unfiltered = f.o.SourceFilter == nil
	f.change(func() {
		f.o.Config, f.remerge = c, true
		f.expandStatic()
		for _, svc := range f.services {
			f.putService(svc.Service)
		}
		for _, p := range f.pods {
			f.putPod(p.Pod)
		}
	})
}

// change calls fn under the lock and wakes Run.
func (f *Forwarder) change(fn func()) {
	f.mu.Lock()
	fn()
	f.stale = true
	f.mu.Unlock()
	select {
	case f.kick <- struct{}{}:
	default:
	}
}
