package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// seen is the result of a watcher.
type seen struct {
	woken, bytes int
	cpu          float64
	err          error
}

// watcher polls the host's mounts in a separate thread, so that its processor time can be measured.
type watcher struct {
	quit   *os.File
	result chan seen
}

func startWatcher() (*watcher, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	begun := make(chan struct{})
	watch := &watcher{w, make(chan seen, 1)}
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer r.Close()
		watch.result <- watchMounts(int(r.Fd()), begun)
	}()
	<-begun
	return watch, nil
}

// stop stops the watcher after it has read all changes, and returns its result.
func (w *watcher) stop() seen {
	_ = w.quit.Close() // closing the pipe stops the watcher
	return <-w.result
}

// watchMounts polls for changes, see proc_pid_mountinfo(5), and reads the whole file after each change. It does not use os.File, because
// Go's runtime would poll the file too and consume the events.
func watchMounts(quit int, begun chan struct{}) (s seen) {
	f, err := unix.Open("/proc/thread-self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		defer func() { _ = unix.Close(f) }()
		_, err = readAll(f)
	}
	close(begun)
	before := threadTime()
	for err == nil {
		fds := []unix.PollFd{{Fd: int32(f), Events: unix.POLLPRI}, {Fd: int32(quit), Events: unix.POLLIN}}
		if _, err = unix.Poll(fds, -1); errors.Is(err, unix.EINTR) {
			err = nil
			continue
		}
		if err == nil && fds[0].Revents&(unix.POLLPRI|unix.POLLERR) != 0 {
			var n int
			n, err = readAll(f)
			s.woken, s.bytes = s.woken+1, s.bytes+n
			continue
		}
		if fds[1].Revents != 0 {
			break
		}
	}
	s.cpu, s.err = (threadTime() - before).Seconds(), err
	return s
}

func readAll(fd int) (int, error) {
	if _, err := unix.Seek(fd, 0, io.SeekStart); err != nil {
		return 0, fmt.Errorf("read mounts: %w", err)
	}
	const page = 64 << 10
	total, buf := 0, make([]byte, page)
	for {
		n, err := unix.Read(fd, buf)
		if err != nil {
			return total, fmt.Errorf("read mounts: %w", err)
		}
		if n == 0 {
			return total, nil
		}
		total += n
	}
}

// threadTime returns the processor time of the calling thread.
func threadTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_THREAD, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
