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

// publish schedules a comparison of the addresses of a Service.
func (f *Forwarder) publish(key Key) {
	if f.o.Publisher == nil {
		return
	}
	svc := f.services[key]
	if svc == nil || svc.Type != "LoadBalancer" && len(svc.Ingress) == 0 {
		delete(f.unpublished, key)
		return
	}
	f.unpublished[key] = struct{}{}
	select {
	case f.publishKick <- struct{}{}:
	default:
	}
}

// runPublisher writes the addresses, one Service at a time: they are few and not urgent.
func (f *Forwarder) runPublisher(ctx context.Context) {
	p := backoffFor(ReasonFailed)
	delay := time.Duration(0)
	for {
		var due <-chan time.Time
		if delay > 0 {
			due = time.After(delay)
		}
		select {
		case <-ctx.Done():
			return
		case <-f.publishKick:
		case <-due:
		}
		if f.publishAll(ctx) {
			delay = 0
		} else {
			delay = min(max(2*delay, p.first), p.limit)
		}
	}
}

// publishAll writes the differences and reports whether nothing is left to do.
func (f *Forwarder) publishAll(ctx context.Context) bool {
	f.mu.Lock()
	type job struct {
		s     Service
		addrs []netip.Addr
	}
	var jobs []job
	for key := range f.unpublished {
		svc, ok := f.services[key]
		delete(f.unpublished, key)
		if !ok {
			continue
		}
		addrs := f.served(svc.Service, Ingress(svc.Service, f.o.Config))
		if !sameAddresses(addrs, svc.Ingress) && (len(addrs) > 0 || f.mayBePublished(svc.Ingress)) {
			jobs = append(jobs, job{svc.Service, addrs})
		}
	}
	f.mu.Unlock()
	done := true
	for _, j := range jobs {
		if err := f.o.Publisher.PublishIngress(ctx, j.s, j.addrs); err != nil && ctx.Err() == nil {
			f.o.Log.WithError(err).Debugf("publish the addresses of %s/%s", j.s.Namespace, j.s.Name)
			f.mu.Lock()
			if _, there := f.services[Key{j.s.Namespace, j.s.Name}]; there {
				f.unpublished[Key{j.s.Namespace, j.s.Name}] = struct{}{}
				done = false
			}
			f.mu.Unlock()
		}
	}
	return done
}

// served drops addresses on which all ports of the Service are refused. Forwarder.mu is held.
func (f *Forwarder) served(s Service, addrs []netip.Addr) []netip.Addr {
	owner := Owner{Kind: KindService, Namespace: s.Namespace, Name: s.Name, UID: s.UID}
	refused := map[netip.Addr]bool{}
	for _, r := range f.refusals {
		if r.Owner.object() == owner {
			refused[r.IP] = true
		}
	}
	if len(refused) == 0 {
		return addrs
	}
	for _, w := range f.services[Key{s.Namespace, s.Name}].forwards {
		if f.wanted[w.Bind].Owner.object() == owner && !w.Assigned {
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

// mayBePublished reports whether this node could have written these addresses, as opposed to another load balancer.
func (f *Forwarder) mayBePublished(ingress []string) bool {
	return slices.ContainsFunc(ingress, func(text string) bool {
		ip, err := netip.ParseAddr(text)
		return err == nil && (ip.IsLoopback() || f.o.Config.owns(ip.Unmap()) || slices.Contains(f.o.Config.BindAddresses, ip.Unmap()))
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
