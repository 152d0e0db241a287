package hostsetup

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/proc"
	"github.com/rootlessnode/rootlessnode/internal/terminal"
)

const (
	// drainTime is how long to read output after the program has ended, because other processes may keep it open.
	drainTime = 500 * time.Millisecond
	// foregroundPoll is how often a relay in the background checks whether it must put the terminal into raw mode.
	foregroundPoll = 200 * time.Millisecond
	// signalBacklog is the number of signals that may wait to be forwarded. More are dropped, as the kernel drops equal ones.
	signalBacklog = 16
	// exitSignalBase plus the number of a signal is the exit code of a program that the signal killed, as in shells.
	exitSignalBase = 128
)

func standardStreams() []*os.File { return []*os.File{os.Stdin, os.Stdout, os.Stderr} }

// hasTerminal reports whether a program that this process executes could use a terminal of the caller: as a standard stream, or as
// its controlling terminal, with which it could insert input for the caller's shell (TIOCSTI of ioctl_tty(2)).
func hasTerminal() bool {
	if slices.ContainsFunc(standardStreams(), terminal.Is) {
		return true
	}
	s, err := proc.Host.Self()
	return err != nil || s.TTY != 0
}

// relay starts this program again in a new session, where it enters the account, and copies data between it and the terminals among
// the standard streams until it ends.
func relay(o EnterOptions, a hostinfo.Account) (code int, err error) {
	runtime.LockOSThread() // the parent death signal is sent when this thread ends (prctl(2))
	defer runtime.UnlockOSThread()
	r := &relayed{signals: make(chan os.Signal, signalBacklog)}
	defer r.release()
	if err := r.open(a); err != nil {
		return 1, fmt.Errorf("enter: %w", err)
	}
	for _, sig := range []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2,
		unix.SIGWINCH, unix.SIGTSTP, unix.SIGCONT} {
		if !signal.Ignored(sig) { // otherwise the program ignores it too, as with nohup(1)
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
	// The relay must not be stopped by these signals. In the background it neither reads from the terminal nor changes it.
	signal.Ignore(unix.SIGTTIN, unix.SIGTTOU)
	return r.run()
}

// relayed is a program in its own session, with the streams that are copied to and from it.
type relayed struct {
	process *os.Process
	signals chan os.Signal
	// files are the standard streams of the program. far are those of them that were created for it.
	files, far []*os.File
	// pty is set if the program has a pseudo terminal, whose near end is near[0].
	pty bool
	// near are the relay's ends of far.
	near []*os.File
	// copyIn starts copying to the program, and copyOut from it.
	copyIn  func(*sync.WaitGroup) (cancel func())
	copyOut func(*sync.WaitGroup)
	// restore ends raw mode of the caller's terminal. nil if it is not in raw mode.
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
		// There is no devpts, as in a chroot. Use pipes, which work everywhere.
	}
	return r.openPipes()
}

// openPty creates a pseudo terminal for the streams of the program that are the caller's terminal.
func (r *relayed) openPty(a hostinfo.Account, near, far *os.File) error {
	r.pty, r.near, r.far = true, []*os.File{near}, []*os.File{far}
	// Programs also open it by its name.
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

// openPipes creates a pipe for each stream of the program that is a terminal. Standard output and error share a pipe if both are
// terminals, which preserves their order.
func (r *relayed) openPipes() error {
	pipe := func() (read, write *os.File, err error) {
		if read, write, err = os.Pipe(); err != nil {
			err = fmt.Errorf("create a pipe: %w", err)
		}
		return read, write, err
	}
	if terminal.Is(os.Stdin) {
		read, write, err := pipe()
		if err != nil {
			return err
		}
		r.files[0], r.far, r.near = read, append(r.far, read), append(r.near, write)
		end := func() { _ = write.Close() } // the program reads end of file
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
	closeFiles(r.near) // closing a file twice is harmless
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
			r.forward(s.(syscall.Signal)) // on Linux every os.Signal has this type
		case <-poll.C:
			r.enterRaw()
		case <-stopped:
			r.leaveRaw()
			_ = unix.Kill(os.Getpid(), unix.SIGSTOP) // continues here after SIGCONT, which is forwarded
		case <-ended:
			running = false
		}
	}
	// Setting deadlines cannot fail, because these files use the poller. Input that the program did not read is dropped.
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

// watch reports each stop of the program, and its end. It does not reap the program.
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

// forward handles a signal of the relay. The program is the leader of its session and process group and is not reaped yet, so its
// pid is still valid.
func (r *relayed) forward(sig syscall.Signal) {
	switch sig {
	case unix.SIGWINCH:
		if r.pty {
			terminal.Resize(r.near[0], os.Stdout) // the kernel signals the program
		}
		return
	case unix.SIGTSTP:
		sig = unix.SIGSTOP // TSTP has no effect in a session without a job control shell (setpgid(2))
	case unix.SIGCONT:
		r.enterRaw()
		if r.pty {
			terminal.Resize(r.near[0], os.Stdout)
		}
	}
	// ESRCH: all processes of the group have ended.
	_ = unix.Kill(-r.process.Pid, sig)
}

// enterRaw puts the caller's terminal into raw mode if the relay is in its foreground, so that all keys go to the program.
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
	if !terminal.Background(os.Stdin) { // otherwise the foreground program has set the mode that it needs
		r.restore()
	}
	r.restore = nil
}
