package parent

import (
	"time"

	"github.com/rootlessnode/rootlessnode/internal/deadchild"
)

// unreaped finds zombie children of this process that stay unreaped, and reports each one repeatedly until it is reaped. Other children are reaped immediately after their end, but
// RootlessKit does not wait for its network program and, during setup, for its child.
type unreaped struct {
	found   chan deadchild.Child
	request chan struct{}
	quit    chan struct{}
	ended   chan struct{}
}

func newUnreaped() *unreaped {
	u := &unreaped{found: make(chan deadchild.Child, 1), request: make(chan struct{}, 1), quit: make(chan struct{}), ended: make(chan struct{})}
	go u.run()
	u.check() // a child may have ended before SIGCHLD was handled
	return u
}

// check requests a check and does not block.
func (u *unreaped) check() {
	select {
	case u.request <- struct{}{}:
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
		case <-u.request:
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
				return
			}
		}
		u.check() // there may be another one
	}
}
