package portfwd

import (
	"fmt"
	"maps"
)

// Trouble is a problem of an open forward. Reason is one of the Reason constants.
type Trouble struct{ Reason, Message string }

// SetTrouble replaces the set of open forwards that have a problem. Their state stays open. The owner of a forward gets an
// Event when a problem begins and when it ends.
func (f *Forwarder) SetTrouble(all map[Bind]Trouble) {
	f.in.change(func() { f.trouble, f.troubleNew = maps.Clone(all), true })
}

// applyTrouble updates the entries with the last SetTrouble.
func (f *Forwarder) applyTrouble() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.troubleNew {
		return
	}
	f.troubleNew = false
	for _, e := range f.entries {
		var now Trouble
		if e.have != nil {
			now = f.trouble[e.bind]
		}
		if now == e.trouble {
			continue
		}
		was := e.trouble
		e.trouble = now
		f.reports.changed = true
		switch now.Reason {
		case was.Reason:
		case "":
			f.reports.add(Event{Owner: e.owner, Reason: ReasonOpen, Message: fmt.Sprintf("%s accepts connections again", e.bind)})
		default:
			f.o.Log.WithField("owner", e.owner.String()).Warnf("forward %s: %s", e.bind, now.Message)
			f.reports.add(Event{
				Warning: true, Owner: e.owner, Reason: now.Reason, Message: fmt.Sprintf("forward %s: %s", e.bind, now.Message),
				Hint: hintOf(now.Reason, e.bind, f.o.Config, ""),
			})
		}
	}
}
