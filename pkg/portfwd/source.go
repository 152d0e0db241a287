package portfwd

import (
	"context"
	"time"

	"github.com/sirupsen/logrus"
)

// runSource runs one source until ctx ends and restarts it when it fails. While it is not running, everything stays as it
// is.
func runSource(ctx context.Context, log logrus.FieldLogger, what string, run func(context.Context) error) {
	p := backoffFor(ReasonFailed)
	for delay := p.first; ; delay = min(2*delay, p.limit) {
		err := run(ctx)
		if ctx.Err() != nil {
			return
		}
		log.WithError(err).Warnf("the source of %s ended; restarting it", what)
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

// inputs holds the data of the sources, guarded by Forwarder.mu.
type inputs struct {
	f         *Forwarder
	services  map[Key]*serviceState
	pods      map[Key]*podState
	endpoints map[Key]Endpoints
	synced    synced
	stale     bool // inputs changed since the wanted forwards were computed
	remerge   bool // deltas do not cover all changes: merge everything
	deltas    []delta
}

// sink receives Services and expands them; Run processes the result.
type sink struct{ in *inputs }

func (s sink) Replace(all []Service) {
	s.in.change(func() {
		if !s.in.synced.services {
			close(s.in.f.query.known)
		}
		gone := s.in.services
		s.in.services, s.in.synced.services, s.in.remerge = make(map[Key]*serviceState, len(all)), true, true
		for _, svc := range all {
			s.in.putService(svc)
		}
		for key := range gone {
			s.in.f.publish.schedule(key)
		}
	})
}

func (s sink) Set(svc Service) { s.in.change(func() { s.in.putService(svc) }) }

func (s sink) Delete(namespace, name string) {
	s.in.change(func() {
		if old := s.in.services[Key{namespace, name}]; old != nil {
			s.in.deltas = append(s.in.deltas, delta{before: old.expansion})
			delete(s.in.services, Key{namespace, name})
		}
	})
}

// podSink receives pods.
type podSink struct{ in *inputs }

func (s podSink) Replace(all []Pod) {
	s.in.change(func() {
		s.in.pods, s.in.synced.pods, s.in.remerge = make(map[Key]*podState, len(all)), true, true
		for _, p := range all {
			s.in.putPod(p)
		}
	})
}

func (s podSink) Set(p Pod) { s.in.change(func() { s.in.putPod(p) }) }

func (s podSink) Delete(namespace, name string) {
	s.in.change(func() {
		if old := s.in.pods[Key{namespace, name}]; old != nil {
			s.in.deltas = append(s.in.deltas, delta{before: old.expansion})
			delete(s.in.pods, Key{namespace, name})
		}
	})
}

// endpointSink receives the endpoints of Services. Endpoints of unknown Services are recorded too, because either watch can
// be the first.
type endpointSink struct {
	in     *inputs
	listed func() // called after the first Replace
}

func (s endpointSink) Replace(all map[Key]Endpoints) {
	s.in.change(func() {
		s.in.endpoints, s.in.synced.endpoints, s.in.remerge = make(map[Key]Endpoints, len(all)), true, true
		for key, e := range all {
			s.in.endpoints[key] = e
		}
		for _, svc := range s.in.services {
			s.in.putService(svc.Service)
		}
	})
	s.listed()
}

func (s endpointSink) Set(key Key, e Endpoints) {
	s.in.change(func() {
		if e == (Endpoints{}) {
			delete(s.in.endpoints, key)
		} else {
			s.in.endpoints[key] = e
		}
		if svc := s.in.services[key]; svc != nil {
			s.in.putService(svc.Service)
		}
	})
}

func (in *inputs) putService(svc Service) {
	key := Key{svc.Namespace, svc.Name}
	var ready *Endpoints
	if in.f.o.Endpoints != nil {
		e := in.endpoints[key]
		ready = &e
	}
	now := expandService(svc, ready, in.f.o.Config)
	var before expansion
	if old := in.services[key]; old != nil {
		before = old.expansion
	}
	in.services[key] = &serviceState{svc, now}
	in.f.query.want(key, now)
	in.deltas = append(in.deltas, delta{before, now})
	in.f.publish.schedule(key)
}

func (in *inputs) putPod(p Pod) {
	key, now := Key{p.Namespace, p.Name}, expandPod(p, in.f.o.Config)
	var before expansion
	if old := in.pods[key]; old != nil {
		before = old.expansion
	}
	in.pods[key] = &podState{p, now}
	in.deltas = append(in.deltas, delta{before, now})
}

// SetConfig replaces the config. Forwards that are the same in both stay open. It is safe for concurrent use.
func (f *Forwarder) SetConfig(c Config) {
	c = c.normal()
	c.unfiltered = f.o.SourceFilter == nil
	f.in.change(func() {
		c.denied = f.o.Config.denied
		f.o.Config, f.in.remerge = c, true
		f.plan.expandStatic()
		for _, svc := range f.in.services {
			f.in.putService(svc.Service)
		}
		for _, p := range f.in.pods {
			f.in.putPod(p.Pod)
		}
	})
}

// setDenied records whether the host denies the port of a Service or a pod, which determines whether it has a replacement.
func (in *inputs) setDenied(e *entry, now bool) {
	if _, was := in.f.o.Config.denied[e.bind]; was == now || !e.owner.inCluster() {
		return
	}
	if now {
		in.f.o.Config.denied[e.bind] = struct{}{}
	} else {
		delete(in.f.o.Config.denied, e.bind)
	}
	in.expandAgain(e.owner)
}

// expandAgain expands the Service or pod of an owner again. Forwarder.mu is held.
func (in *inputs) expandAgain(o Owner) {
	key := Key{o.Namespace, o.Name}
	if svc := in.services[key]; o.Kind == KindService && svc != nil {
		in.putService(svc.Service)
	}
	if pod := in.pods[key]; o.Kind == KindPod && pod != nil {
		in.putPod(pod.Pod)
	}
	in.stale = true
	in.wake()
}

// change calls fn under the lock and wakes Run.
func (in *inputs) change(fn func()) {
	in.f.mu.Lock()
	fn()
	in.stale = true
	in.f.mu.Unlock()
	in.wake()
}

func (in *inputs) wake() {
	select {
	case in.f.kick <- struct{}{}:
	default:
	}
}
