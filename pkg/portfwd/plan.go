package portfwd

// delta is the change of one Service or pod: its expansion before and now.
type delta struct{ before, now expansion }

// tally counts the forwards of one place: those that listen on all addresses, and those that listen on one.
type tally struct{ wild, specific int }

// plan updates the entries with the wanted forwards.
func (f *Forwarder) plan() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.stale {
		return
	}
	patched := !f.remerge && f.patch()
	f.stale, f.remerge, f.deltas = false, false, nil
	if !patched {
		f.mergeAll()
	}
}

// mergeAll computes the wanted forwards from scratch.
func (f *Forwarder) mergeAll() {
	all := make([]expansion, 0, len(f.services)+len(f.pods)+1)
	all = append(all, f.static)
	for _, s := range f.services {
		all = append(all, s.expansion)
	}
	for _, p := range f.pods {
		all = append(all, p.expansion)
	}
	wanted, refused, warnings := (&allocator{
		holders: f.ledger.holding(), reserve: !f.inputsKnown(), most: f.o.Config.MaxForwards,
	}).merge(all)
	warnings = append(warnings, rejectionWarnings(refused)...)
	f.wanted, f.places, f.clean = wanted, make(map[place]tally, len(wanted)), len(warnings) == 0
	for b, w := range wanted {
		f.count(b, 1)
		f.want(b, w)
	}
	for b, e := range f.entries {
		if _, ok := wanted[b]; !ok {
			f.unwant(e) // also forwards of an earlier run, once all Services and pods are known
		}
	}
	f.refuse(refused)
	f.warn(warnings)
	if f.inputsKnown() {
		for b := range f.ledger.holding() {
			f.recordHolder(b)
		}
		for b := range wanted {
			f.recordHolder(b)
		}
	}
}

// inputsKnown reports whether all Services and pods are known. Until then, a place is not given to an owner only because it
// was reported first.
func (f *Forwarder) inputsKnown() bool { return f.synced.services && f.synced.pods }

// recordHolder records the Service or pod that has b now.
func (f *Forwarder) recordHolder(b Bind) {
	var owner Owner
	if w, ok := f.wanted[b]; ok && w.rank() > rankManual {
		owner = w.Owner.object()
	}
	if err := f.ledger.hold(b, owner); err != nil {
		f.o.Log.WithError(err).Warn("update the port ledger")
	}
}

// patch applies the deltas and reports whether that was possible. If owners compete for a place, mergeAll is needed to
// compare all of them. With thousands of Services, patch makes a change as cheap as with one.
func (f *Forwarder) patch() bool {
	if !f.clean || !f.inputsKnown() {
		return false
	}
	touched := map[Bind]struct{}{}
	for _, d := range f.deltas {
		if len(d.before.warnings)+len(d.now.warnings) > 0 {
			return false
		}
		for _, w := range d.before.forwards {
			delete(f.wanted, w.Bind)
			f.count(w.Bind, -1)
			touched[w.Bind] = struct{}{}
		}
		for _, w := range d.now.forwards {
			if _, taken := f.wanted[w.Bind]; taken {
				return false
			}
			f.wanted[w.Bind] = w
			if n := f.count(w.Bind, 1); n.wild > 0 && n.specific > 0 {
				return false
			}
			touched[w.Bind] = struct{}{}
		}
	}
	if len(f.wanted) > f.o.Config.MaxForwards {
		return false
	}
	for b := range touched {
		f.recordHolder(b)
		if w, ok := f.wanted[b]; ok {
			f.want(b, w)
		} else if e := f.entries[b]; e != nil {
			f.unwant(e)
		}
	}
	return true
}

// count adds by to the number of forwards in b's place.
func (f *Forwarder) count(b Bind, by int) tally {
	p := place{b.Proto, b.Port}
	n := f.places[p]
	if b.IP.IsUnspecified() {
		n.wild += by
	} else {
		n.specific += by
	}
	if n == (tally{}) {
		delete(f.places, p)
	} else {
		f.places[p] = n
	}
	return n
}

// want sets w as the wanted forward at b.
func (f *Forwarder) want(b Bind, w Forward) {
	e := f.entry(b)
	spec, err := f.resolve(w)
	if e.want != nil && *e.want == w && e.spec == spec && err == nil {
		if w.Waiting {
			f.dirty[e] = struct{}{} // closed once all endpoints are known
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
		f.refresh(e)
	}
	f.dirty[e] = struct{}{}
}
