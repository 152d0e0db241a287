package portfwd

import (
	"fmt"
	"maps"
)

// Trouble is what is wrong with a forward although it is open. Reason is one of the Reason constants.
type Trouble struct{ Reason, Message string }

// SetTrouble says which open forwards have trouble at present; all others have none. Their state stays open. The
// owner of each gets an Event when it begins and when it ends.
func (f *Forwarder) SetTrouble(all map[Bind]Trouble) {
	f.change(func() { f.trouble, f.troubleNew = maps.Clone(all), true })
}

// applyTrouble compares the entries with what SetTrouble said last.
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
		f.changed = true
		switch now.Reason {
		case was.Reason:
		case "":
			f.outbox = append(f.outbox, Event{Owner: e.owner, Reason: ReasonOpen, Message: fmt.Sprintf("%s takes connections again", e.bind)})
		default:
			f.o.Log.WithField("owner", e.owner.String()).Warnf("forward %s: %s", e.bind, now.Message)
			f.outbox = append(f.outbox, Event{
				Warning: true, Owner: e.owner, Reason: now.Reason, Message: fmt.Sprintf("forward %s: %s", e.bind, now.Message),
				Hint: hintOf(now.Reason, e.bind, f.o.Config, ""),
			})
		}
	}
}
