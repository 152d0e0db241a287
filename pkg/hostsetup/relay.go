package hostsetup

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/terminal"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

const (
	// drainTime is how long output is still read that something else holds open after the program has ended.
	drainTime = 500 * time.Millisecond
	// foregroundPoll is how often a relay in the background checks whether it has to put the terminal in raw mode.
	foregroundPoll = 200 * time.Millisecond
	// signalBacklog is how many signals may wait to be forwarded; more are dropped, as the kernel does with equal ones.
	signalBacklog = 16
	// exitSignalBase plus the signal's number is the code of a program that a signal ended, as shells use it.
	exitSignalBase = 128
)

func standardStreams() []*os.File { return []*os.File{os.Stdin, os.Stdout, os.Stderr} }

// hasTerminal reports whether a program that is executed in this process's place could use a terminal of the caller: by a
// standard stream, or as its controlling terminal, which may insert input for the caller's shell (TIOCSTI of ioctl_tty(2)).
func hasTerminal() bool {
	if slices.ContainsFunc(standardStreams(), terminal.Is) {
		return true
	}
	b, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return true // unknown
	}
	_, rest, _ := strings.Cut(string(b), ") ") // the name before it is this program's own
	fields := strings.Fields(rest)             // state, ppid, pgrp, session, tty_nr: proc_pid_stat(5)
	const ttyNumber = 4
	return len(fields) <= ttyNumber || fields[ttyNumber] != "0"
}

// relay starts this program again in a session of its own, in which it enters, and copies between it and the terminals
// among the standard streams until it ends.
func relay(o EnterOptions, a hostinfo.Account) (code int, err error) {
	runtime.LockOSThread() // the death of this thread is the parent's for the parent death signal (prctl(2))
	defer runtime.UnlockOSThread()
	r := &relayed{signals: make(chan os.Signal, signalBacklog)}
	defer r.release()
	if err := r.open(a); err != nil {
		return 1, fmt.Errorf("enter: %w", err)
	}
	for _, sig := range []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2,
		unix.SIGWINCH, unix.SIGTSTP, unix.SIGCONT} {
		if !signal.Ignored(sig) { // else the program ignores it too, as with nohup(1)
			signal.Notify(r.signals, sig)
		}
	}
	defer signal.Stop(r.signals)
	env := o.Env
	if env == nil {
		env = os.Environ()
	}
	r.process, err = os.StartProcess("/proc/self/exe", os.Args, &os.ProcAttr{
		Env:   append(slices.Clone(env), layout.EnvRelay+"="+strconv.Itoa(os.Getpid())),
		Files: r.files,
		Sys:   &syscall.SysProcAttr{Setsid: true, Setctty: r.pty},
	})
	closeFiles(r.far)
	if err != nil {
		return 1, fmt.Errorf("enter: start the program: %w", err)
	}
	// In the background the relay neither reads from the terminal nor changes it, and is not to be stopped on the way.
	signal.Ignore(unix.SIGTTIN, unix.SIGTTOU)
	return r.run()
}

// relayed is a program in a session of its own, and what is copied to and from it.
type relayed struct {
	process *os.Process
	signals chan os.Signal
	// files are the program's standard streams; far are those of them that were made for it.
	files, far []*os.File
	// pty: the program has a pseudo terminal, whose near end is near[0].
	pty bool
	// near are this side's ends of far.
	near []*os.File
	// copyIn starts copying to the program, and copyOut from it.
	copyIn  func(*sync.WaitGroup) (cancel func())
	copyOut func(*sync.WaitGroup)
	// restore ends raw mode of the caller's terminal; nil: it is not in raw mode.
	restore func()
}

func (r *relayed) open(a hostinfo.Account) error {
	r.files = standardStreams()
	r.copyIn, r.copyOut = func(*sync.WaitGroup) func() { return func() {} }, func(*sync.WaitGroup) {}
	if terminal.Is(os.Stdin) && terminal.Is(os.Stdout) {
		near, far, err := terminal.Open()
		if err == nil {
			return r.openPty(a, near, far)
		}
		// No devpts, as in a chroot: pipes work everywhere.
	}
	return r.openPipes()
}

// openPty gives the program a pseudo terminal for those of its streams that are the caller's terminal.
func (r *relayed) openPty(a hostinfo.Account, near, far *os.File) error {
	r.pty, r.near, r.far = true, []*os.File{near}, []*os.File{far}
	// Programs open it by its name, too.
	if err := errors.Join(far.Chown(a.UID, -1), far.Chmod(0o600)); err != nil {
		return fmt.Errorf("pass the terminal to %s: %w", a.Name, err)
	}
	for i, f := range r.files {
		if terminal.Is(f) {
			r.files[i] = far
		}
	}
	terminal.Resize(near, os.Stdout)
	r.copyIn = func(wg *sync.WaitGroup) func() { return terminal.CopyIn(wg, near, os.Stdin, terminal.EndOfInput(near)) }
	r.copyOut = func(wg *sync.WaitGroup) { terminal.CopyOut(wg, near, os.Stdout) }
	return nil
}

// openPipes gives the program a pipe in the place of each stream that is a terminal. Output and errors share one if both
// are, which keeps their order.
func (r *relayed) openPipes() error {
	pipe := func() (read, write *os.File, err error) {
		if read, write, err = os.Pipe(); err != nil {
			err = fmt.Errorf("make a pipe: %w", err)
		}
		return read, write, err
	}
	if terminal.Is(os.Stdin) {
		read, write, err := pipe()
		if err != nil {
			return err
		}
		r.files[0], r.far, r.near = read, append(r.far, read), append(r.near, write)
		end := func() { _ = write.Close() } // the program reads the end of its input then
		r.copyIn = func(wg *sync.WaitGroup) func() { return terminal.CopyIn(wg, write, os.Stdin, end) }
	}
	var shared *os.File
	for i, to := range standardStreams() {
		if i == 0 || !terminal.Is(to) {
			continue
		}
		if shared != nil {
			r.files[i] = shared
			continue
		}
		read, write, err := pipe()
		if err != nil {
			return err
		}
		shared, r.files[i], r.far, r.near = write, write, append(r.far, write), append(r.near, read)
		r.copyOut = func(wg *sync.WaitGroup) { terminal.CopyOut(wg, read, to) }
	}
	return nil
}

func (r *relayed) release() {
	r.leaveRaw()
	closeFiles(r.near) // those that are closed already stay so
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}

// run copies and forwards signals until the program has ended.
func (r *relayed) run() (int, error) {
	r.enterRaw()
	var copying sync.WaitGroup
	cancelIn := r.copyIn(&copying)
	r.copyOut(&copying)
	stopped, ended := r.watch()
	poll := time.NewTicker(foregroundPoll)
	defer poll.Stop()
	for running := true; running; {
		select {
		case s := <-r.signals:
			r.forward(s.(syscall.Signal)) // of this system there are no others
		case <-poll.C:
			r.enterRaw()
		case <-stopped:
			r.leaveRaw()
			_ = unix.Kill(os.Getpid(), unix.SIGSTOP) // a CONT is forwarded and goes on from here
		case <-ended:
			running = false
		}
	}
	// What was made for the program is in the poller, so deadlines cannot be refused. Input that it did not take is dropped.
	for _, f := range r.near {
		_ = f.SetWriteDeadline(time.Now())
		_ = f.SetReadDeadline(time.Now().Add(drainTime))
	}
	cancelIn()
	copying.Wait()
	state, err := r.process.Wait()
	if err != nil {
		return 1, fmt.Errorf("enter: wait for the program: %w", err)
	}
	if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return exitSignalBase + int(ws.Signal()), nil
	}
	return state.ExitCode(), nil
}

// watch reports each time that the program is stopped, and its end, after which it is still there to be reaped.
func (r *relayed) watch() (stopped, ended <-chan struct{}) {
	stop, end := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(end)
		for {
			var info unix.Siginfo
			err := unix.Waitid(unix.P_PID, r.process.Pid, &info, unix.WEXITED|unix.WSTOPPED|unix.WNOWAIT, nil)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			const childStopped = 5 // CLD_STOPPED of waitid(2)
			if err != nil || info.Code != childStopped {
				return
			}
			_ = unix.Waitid(unix.P_PID, r.process.Pid, nil, unix.WSTOPPED|unix.WNOHANG, nil) // so that it is reported once
			stop <- struct{}{}
		}
	}()
	return stop, end
}

// forward handles a signal of the relay. The program leads its session and its process group, and is not reaped yet, so the
// number is still its own.
func (r *relayed) forward(sig syscall.Signal) {
	switch sig {
	case unix.SIGWINCH:
		if r.pty {
			terminal.Resize(r.near[0], os.Stdout) // the kernel signals the program
		}
		return
	case unix.SIGTSTP:
		sig = unix.SIGSTOP // TSTP does nothing to a session without a shell that controls jobs (setpgid(2))
	case unix.SIGCONT:
		r.enterRaw()
		if r.pty {
			terminal.Resize(r.near[0], os.Stdout)
		}
	}
	// ESRCH: all of the group have ended.
	_ = unix.Kill(-r.process.Pid, sig)
}

// enterRaw passes all keys to the program's terminal, as soon as the relay is in the foreground of the caller's.
func (r *relayed) enterRaw() {
	if !r.pty || r.restore != nil || terminal.Background(os.Stdin) {
		return
	}
	if restore, err := terminal.Raw(os.Stdin); err == nil {
		r.restore = restore
	}
}

func (r *relayed) leaveRaw() {
	if r.restore == nil {
		return
	}
	if !terminal.Background(os.Stdin) { // else another program has set the mode that it needs
		r.restore()
	}
	r.restore = nil
}
