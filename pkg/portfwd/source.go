package portfwd

import (
	"context"
	"time"
)

// runSource keeps the source running. While it is away everything stays as it is.
func (f *Forwarder) runSource(ctx context.Context) {
	p := paceOf(ReasonFailed)
	for delay := p.first; ; delay = min(2*delay, p.limit) {
		err := f.o.Source.Run(ctx, sink{f})
		if ctx.Err() != nil {
			return
		}
		f.o.Log.WithError(err).Warn("the source of Services ended and is started again")
		t := time.NewTimer(delay)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		}
	}
}

// sink expands Services as they come; Run picks the result up.
type sink struct{ f *Forwarder }

func (s sink) Replace(all []Service) {
	expanded := make(map[serviceKey]expansion, len(all))
	for _, svc := range all {
		s.put(expanded, svc)
	}
	s.change(func() { s.f.services, s.f.synced = expanded, true })
}

func (s sink) Set(svc Service) { s.change(func() { s.put(s.f.services, svc) }) }

func (s sink) Delete(namespace, name string) {
	s.change(func() { delete(s.f.services, serviceKey{namespace, name}) })
}

func (s sink) put(into map[serviceKey]expansion, svc Service) {
	key := serviceKey{svc.Namespace, svc.Name}
	e := expandService(svc, s.f.o.Config)
	if len(e.forwards)+len(e.warnings) == 0 {
		delete(into, key)
		return
	}
	into[key] = e
}

func (s sink) change(fn func()) {
	s.f.mu.Lock()
	fn()
	s.f.stale = true
	s.f.mu.Unlock()
	select {
	case s.f.kick <- struct{}{}:
	default:
	}
}
