package portfwd

import (
	"context"
	"net/netip"
	"slices"
	"time"
)

// Publisher writes the addresses of Services of type LoadBalancer.
type Publisher interface {
	// PublishIngress sets the load balancer status of s to addrs. If addrs is empty, it removes the addresses that it wrote
	// earlier and keeps those of another load balancer.
	PublishIngress(ctx context.Context, s Service, addrs []netip.Addr) error
}

// publisher keeps the published addresses of Services in line with the forwards.
type publisher struct {
	f       *Forwarder
	kick    chan struct{}
	pending map[Key]struct{} // Services whose published addresses must be compared; guarded by Forwarder.mu
}

// schedule schedules a comparison of the addresses of a Service. Forwarder.mu is held.
func (p *publisher) schedule(key Key) {
	if p.f.o.Publisher == nil {
		return
	}
	svc := p.f.in.services[key]
	if svc == nil || svc.Type != "LoadBalancer" && len(svc.Ingress) == 0 {
		delete(p.pending, key)
		return
	}
	p.pending[key] = struct{}{}
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// run writes the addresses, one Service at a time: they are few and not urgent.
func (p *publisher) run(ctx context.Context) {
	backoff := backoffFor(ReasonFailed)
	delay := time.Duration(0)
	for {
		var due <-chan time.Time
		if delay > 0 {
			due = time.After(delay)
		}
		select {
		case <-ctx.Done():
			return
		case <-p.kick:
		case <-due:
		}
		if p.publishAll(ctx) {
			delay = 0
		} else {
			delay = min(max(2*delay, backoff.first), backoff.limit)
		}
	}
}

// publishAll writes the differences and reports whether nothing is left to do.
func (p *publisher) publishAll(ctx context.Context) bool {
	f := p.f
	f.mu.Lock()
	type job struct {
		s     Service
		addrs []netip.Addr
	}
	var jobs []job
	for key := range p.pending {
		svc, ok := f.in.services[key]
		delete(p.pending, key)
		if !ok {
			continue
		}
		addrs := p.served(svc.Service, Ingress(svc.Service, f.o.Config))
		if !sameAddresses(addrs, svc.Ingress) && (len(addrs) > 0 || f.o.Config.mayPublish(svc.Ingress)) {
			jobs = append(jobs, job{svc.Service, addrs})
		}
	}
	f.mu.Unlock()
	done := true
	for _, j := range jobs {
		if err := f.o.Publisher.PublishIngress(ctx, j.s, j.addrs); err != nil && ctx.Err() == nil {
			f.o.Log.WithError(err).Debugf("publish the addresses of %s/%s", j.s.Namespace, j.s.Name)
			f.mu.Lock()
			if _, there := f.in.services[Key{j.s.Namespace, j.s.Name}]; there {
				p.pending[Key{j.s.Namespace, j.s.Name}] = struct{}{}
				done = false
			}
			f.mu.Unlock()
		}
	}
	return done
}

// served drops addresses on which all ports of the Service are refused. Forwarder.mu is held.
func (p *publisher) served(s Service, addrs []netip.Addr) []netip.Addr {
	owner := Owner{Kind: KindService, Namespace: s.Namespace, Name: s.Name, UID: s.UID}
	refused := map[netip.Addr]bool{}
	for _, r := range p.f.refusals {
		if r.Owner.object() == owner {
			refused[r.IP] = true
		}
	}
	if len(refused) == 0 {
		return addrs
	}
	for _, w := range p.f.in.services[Key{s.Namespace, s.Name}].forwards {
		if p.f.plan.wanted[w.Bind].Owner.object() == owner && !w.Assigned {
			delete(refused, w.IP)
		}
	}
	return slices.DeleteFunc(addrs, func(a netip.Addr) bool {
		return refused[a] || refused[netip.IPv4Unspecified()] && a.Is4() || refused[netip.IPv6Unspecified()] && !a.Is4()
	})
}

func sameAddresses(addrs []netip.Addr, have []string) bool {
	texts := make([]string, len(addrs))
	for i, a := range addrs {
		texts[i] = a.String()
	}
	return slices.Equal(texts, have)
}

// mayPublish reports whether this node could have written these addresses, as opposed to another load balancer.
func (c Config) mayPublish(ingress []string) bool {
	return slices.ContainsFunc(ingress, func(text string) bool {
		ip, err := netip.ParseAddr(text)
		return err == nil && (ip.IsLoopback() || c.owns(ip.Unmap()) || slices.Contains(c.BindAddresses, ip.Unmap()))
	})
}

// Ingress returns the load balancer addresses of a Service of type LoadBalancer; none if the node is not its load balancer.
// It is pure.
func Ingress(s Service, cfg Config) []netip.Addr {
	if !isBalanced(s, cfg) {
		return nil
	}
	cfg = cfg.normal()
	c, err := parseChoices(s.Namespace, s.Annotations, cfg)
	if err != nil || c.off || c.validate(s) != nil {
		return nil
	}
	if ranges, err := s.sourceRanges(); err != nil || ranges != "" && cfg.unfiltered {
		return nil
	}
	var out []netip.Addr
	for _, a := range addressesFor(s.IPFamilies, c.bind, cfg) {
		if a.IsUnspecified() {
			a = cfg.preferred(a.Is4())
		}
		if !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	return out
}

// preferred returns the first address of the host of a family that is reachable from other hosts, otherwise loopback.
func (c Config) preferred(v4 bool) netip.Addr {
	for _, h := range c.HostAddresses {
		if a := h.IP.Unmap(); a.Is4() == v4 && !a.IsLoopback() && !a.IsLinkLocalUnicast() {
			return a
		}
	}
	if v4 {
		return DefaultBindAddress()
	}
	return netip.IPv6Loopback()
}
