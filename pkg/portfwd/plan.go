package portfwd

// delta is the change of one Service or pod: its expansion before and now.
type delta struct{ before, now expansion }

// tally counts the forwards of one place: those that listen on all addresses, and those that listen on one.
type tally struct{ wild, specific int }

// planner computes the wanted forwards from the inputs. Only Run's goroutine uses it, except static, which Forwarder.mu guards.
type planner struct {
	f      *Forwarder
	static expansion
	wanted map[Bind]Forward
	places map[place]tally
	clean  bool // no two owners compete for a place in wanted
}

// update updates the entries with the wanted forwards.
func (p *planner) update() {
	f := p.f
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.in.stale {
		return
	}
	patched := !f.in.remerge && p.patch()
	f.in.stale, f.in.remerge, f.in.deltas = false, false, nil
	if !patched {
		p.mergeAll()
	}
}

// mergeAll computes the wanted forwards from scratch.
func (p *planner) mergeAll() {
	f := p.f
	all := make([]expansion, 0, len(f.in.services)+len(f.in.pods)+1)
	all = append(all, p.static)
	for _, s := range f.in.services {
		all = append(all, s.expansion)
	}
	for _, pod := range f.in.pods {
		all = append(all, pod.expansion)
	}
	wanted, refused, warnings := (&allocator{
		holders: f.ledger.holding(), reserve: !f.in.synced.inputs(), most: f.o.Config.MaxForwards,
	}).merge(all)
	warnings = append(warnings, rejectionWarnings(refused)...)
	p.wanted, p.places, p.clean = wanted, make(map[place]tally, len(wanted)), len(warnings) == 0
	for b, w := range wanted {
		p.count(b, 1)
		f.want(b, w)
	}
	for b, e := range f.entries {
		if _, ok := wanted[b]; !ok {
			f.unwant(e) // also forwards of an earlier run, once all Services and pods are known
		}
	}
	f.refuse(refused)
	f.reports.warn(warnings)
	if f.in.synced.inputs() {
		for b := range f.ledger.holding() {
			p.recordHolder(b)
		}
		for b := range wanted {
			p.recordHolder(b)
		}
	}
}

// recordHolder records the Service or pod that has b now.
func (p *planner) recordHolder(b Bind) {
	var owner Owner
	if w, ok := p.wanted[b]; ok && w.rank() > rankManual {
		owner = w.Owner.object()
	}
	p.f.logLedger(p.f.ledger.hold(b, owner))
}

// patch applies the deltas and reports whether that was possible. If owners compete for a place, mergeAll is needed to
// compare all of them. With thousands of Services, patch makes a change as cheap as with one.
func (p *planner) patch() bool {
	f := p.f
	if !p.clean || !f.in.synced.inputs() {
		return false
	}
	touched := map[Bind]struct{}{}
	for _, d := range f.in.deltas {
		if len(d.before.warnings)+len(d.now.warnings) > 0 {
			return false
		}
		for _, w := range d.before.forwards {
			delete(p.wanted, w.Bind)
			p.count(w.Bind, -1)
			touched[w.Bind] = struct{}{}
		}
		for _, w := range d.now.forwards {
			if _, taken := p.wanted[w.Bind]; taken {
				return false
			}
			p.wanted[w.Bind] = w
			if n := p.count(w.Bind, 1); n.wild > 0 && n.specific > 0 {
				return false
			}
			touched[w.Bind] = struct{}{}
		}
	}
	if len(p.wanted) > f.o.Config.MaxForwards {
		return false
	}
	for b := range touched {
		p.recordHolder(b)
		if w, ok := p.wanted[b]; ok {
			f.want(b, w)
		} else if e := f.entries[b]; e != nil {
			f.unwant(e)
		}
	}
	return true
}

// count adds by to the number of forwards in b's place.
func (p *planner) count(b Bind, by int) tally {
	at := place{b.Proto, b.Port}
	n := p.places[at]
	if b.IP.IsUnspecified() {
		n.wild += by
	} else {
		n.specific += by
	}
	if n == (tally{}) {
		delete(p.places, at)
	} else {
		p.places[at] = n
	}
	return n
}

// want sets w as the wanted forward at b.
func (f *Forwarder) want(b Bind, w Forward) {
	e := f.entry(b)
	spec, err := f.manager.resolve(w, f.o.Config)
	if e.want != nil && *e.want == w && e.spec == spec && err == nil {
		if w.Waiting {
			f.queue.dirty[e] = struct{}{} // closed once all endpoints are known
		}
		return
	}
	if w.Sources != "" {
		f.restriction.watched[b] = struct{}{}
	}
	renamed := e.want != nil && e.want.Owner != w.Owner
	e.want, e.owner, e.spec = &w, w.Owner, spec
	if err != nil {
		f.fail(e, err)
		return
	}
	f.refresh(e)
	if renamed {
		e.reported = ""
	}
}

// unwant records that no forward is wanted for e.
func (f *Forwarder) unwant(e *entry) {
	if e.want != nil {
		e.want = nil
		delete(f.o.Config.denied, e.bind)
		f.refresh(e)
	}
	f.queue.dirty[e] = struct{}{}
}
