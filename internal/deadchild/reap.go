package deadchild

import (
	"os"
	"os/signal"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/proc"
)

// ReapOrphans reaps children that have been zombies for the duration after, until stop is called. Process 1 of a pid namespace must do so.
// Other code that waits for a child within that time still gets its exit status. With wait4(2) for any child, that code would get an error.
func ReapOrphans(after time.Duration) (stop func()) {
	chld := make(chan os.Signal, 1)
	signal.Notify(chld, unix.SIGCHLD)
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			before := all()
			if len(before) == 0 {
				select {
				case <-quit:
					return
				case <-chld:
				}
				continue
			}
			select {
			case <-quit:
				return
			case <-time.After(after):
			}
			for _, pid := range before {
				if _, still := ByPID(pid); still {
					_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
				}
			}
		}
	}()
	return func() {
		signal.Stop(chld)
		close(quit)
		<-ended
	}
}

// all returns the pids of the zombie children. If /proc belongs to another pid namespace, it returns none.
func all() []int {
	pids, _ := proc.Host.PIDs() // a partial list is sufficient
	return slices.DeleteFunc(pids, func(pid int) bool {
		_, is := ByPID(pid)
		return !is
	})
}
