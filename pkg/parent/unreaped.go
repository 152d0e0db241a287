package parent

import (
	"time"

	"github.com/rootlessnode/rootlessnode/internal/deadchild"
)

// unreaped finds dead children of this process that stay unreaped. Everything that somebody waits for disappears
// within a moment; RootlessKit's network program and, during set-up, its child do not.
type unreaped struct {
	found chan deadchild.Child
	ask   chan struct{}
	quit  chan struct{}
	ended chan struct{}
}

func newUnreaped() *unreaped {
	u := &unreaped{found: make(chan deadchild.Child, 1), ask: make(chan struct{}, 1), quit: make(chan struct{}), ended: make(chan struct{})}
	go u.run()
	u.look() // a child may have died before SIGCHLD was listened to
	return u
}

// look asks for a check; it never blocks.
func (u *unreaped) look() {
	select {
	case u.ask <- struct{}{}:
	default:
	}
}

func (u *unreaped) close() {
	close(u.quit)
	<-u.ended
}

func (u *unreaped) run() {
	defer close(u.ended)
	for {
		select {
		case <-u.quit:
			return
		case <-u.ask:
		}
		first, ok := deadchild.Any()
		if !ok {
			continue
		}
		select {
		case <-u.quit:
			return
		case <-time.After(unreapedAfter):
		}
		if d, still := deadchild.ByPID(first.PID); still {
			select {
			case u.found <- d:
			case <-u.quit:
			}
			return
		}
		u.look() // another one may have hidden behind it
	}
}
