package mountns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// ExecOptions say what is executed where. Argv is required.
type ExecOptions struct {
	// Name is the namespace; Pin, where Name is empty, the path of a pin, of whatever tool. Both empty: the namespace
	// that the process is in.
	Name, Pin string
	// Argv is the program and its arguments. A program without a slash is looked for on PATH, in the namespace.
	Argv []string
	// Argv0 is what the program is told that it is called; empty: Argv[0].
	Argv0 string
	// IgnorePipe has the program begin with SIGPIPE ignored, as systemd's IgnoreSIGPIPE= does. What the caller was given
	// for that signal is lost: Go's runtime takes it over.
	IgnorePipe bool
	// Env is the environment; nil: that of this process.
	Env []string
}

// StartError: the program was not executed. Code is what a shell would end with: 127 for one that is not there, 126 for
// one that cannot be executed.
type StartError struct {
	Code int
	Err  error
}

func (e *StartError) Error() string { return e.Err.Error() }

// Unwrap returns the reason.
func (e *StartError) Unwrap() error { return e.Err }

// Exit codes of StartError.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
)

// Exec enters the namespace and executes the program in the place of this process, which keeps its pid, parent, cgroup,
// limits, credentials, descriptors, environment, and its working directory by name. So whatever a service manager has
// prepared (LISTEN_FDS with LISTEN_PID, NOTIFY_SOCKET, standard streams) is the program's. It returns only with an
// error, and never executes the program elsewhere than asked.
//
// In a process that is in the namespace already, where the kernel hides the pin, the program is executed at once. A
// process that was put into a root directory of its own (chroot) leaves it.
//
// Who may call: the main program, with nothing else going on: after an error the calling goroutine's thread may be in
// the namespace. Runs in: the host's mount namespace or in the named one, as root.
func (s *Store) Exec(o ExecOptions) error {
	ns, err := s.openFor(o)
	if err != nil {
		return fmt.Errorf("execute in mount namespace %s: %w", o.Name+o.Pin, err)
	}
	if ns != nil {
		runtime.LockOSThread()
		if err := enter(ns); err != nil {
			return fmt.Errorf("execute in mount namespace %s: %w", o.Name+o.Pin, err)
		}
	}
	return execute(o)
}

// openFor opens the namespace to enter; nil is the one that the process is in.
func (s *Store) openFor(o ExecOptions) (*os.File, error) {
	name, at := o.Name, s
	switch {
	case o.Name != "":
		if err := CheckName(o.Name); err != nil {
			return nil, err
		}
	case o.Pin != "":
		dir, base := splitPin(o.Pin)
		name, at = base, &Store{dir: dir}
	default:
		return nil, nil
	}
	ns, state, err := at.openPin(name)
	switch {
	case err != nil || state == own:
		return nil, err
	case state == absent && o.Name == "":
		return nil, fmt.Errorf("%w: nothing is at %s", ErrNotFound, o.Pin)
	case state == absent:
		return nil, notFound(name)
	case state == stale && o.Name == "":
		return nil, fmt.Errorf("%w: %s is a plain file", ErrNotFound, o.Pin)
	case state == stale:
		return nil, errStale(at.Pin(name), name)
	}
	return ns, nil
}

func splitPin(path string) (dir, base string) {
	i := strings.LastIndexByte(path, '/')
	if i < 0 {
		return ".", path
	}
	return path[:i+1], path[i+1:]
}

// enter moves the calling thread, which is locked, into the namespace. Entering sets the working directory to the root
// of the namespace (setns(2)).
func enter(ns *os.File) error {
	dir, err := workingDir()
	if err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return privilege(err)
	}
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
		return privilege(fmt.Errorf("enter: %w", err))
	}
	if err := unix.Chdir(dir); err != nil {
		return fmt.Errorf("the working directory %s is not there inside: %w", dir, err)
	}
	return nil
}

// workingDir is the working directory as the kernel knows it; os.Getwd believes $PWD.
func workingDir() (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Getcwd(buf)
	if err != nil {
		return "", fmt.Errorf("find the working directory: %w", err)
	}
	dir := strings.TrimRight(string(buf[:n]), "\x00")
	if !strings.HasPrefix(dir, "/") { // "(unreachable)...", getcwd(3)
		return "", fmt.Errorf("the working directory %s has no name here", dir)
	}
	return dir, nil
}

func execute(o ExecOptions) error {
	program := o.Argv[0]
	path, err := exec.LookPath(program)
	if err != nil {
		return startError(program, err)
	}
	argv := append([]string{}, o.Argv...)
	if o.Argv0 != "" {
		argv[0] = o.Argv0
	}
	if o.IgnorePipe {
		signal.Ignore(unix.SIGPIPE)
	}
	env := o.Env
	if env == nil {
		env = os.Environ()
	}
	// syscall.Exec gives back the limit of open files that Go has raised at its start.
	return startError(program, syscall.Exec(path, argv, env))
}

func startError(program string, err error) error {
	code := exitNotExecutable
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		code = exitNotFound
	}
	var of *exec.Error
	if errors.As(err, &of) {
		err = of.Err
	}
	return &StartError{code, fmt.Errorf("execute %s: %w", program, err)}
}
