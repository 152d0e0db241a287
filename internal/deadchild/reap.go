package deadchild

import (
	"os"
	"os/signal"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// ReapOrphans reaps the children that have been dead for after and that nobody waited for, as process 1 of a pid namespace
// must, until stop is called. It takes no child from whoever waits for it, as wait4(2) for any child would: to them their
// child seems to have failed.
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

// all are the dead children. /proc is of this process's pid namespace, or else shows none that is a child of ours.
func all() []int {
	d, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1) // what could be read will do
	var dead []int
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		if _, is := ByPID(pid); is {
			dead = append(dead, pid)
		}
	}
	return dead
}
