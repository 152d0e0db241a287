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

// ExecOptions configures Exec. Argv is required.
type ExecOptions struct {
	// Name is the namespace. If it is empty, Pin is the path of a pin, which any tool may have created. If both are empty,
	// the namespace of the process is used.
	Name, Pin string
	// Argv is the program and its arguments. A program without a slash is searched in PATH, in the namespace.
	Argv []string
	// Argv0 is the argv[0] of the program. Empty: Argv[0].
	Argv0 string
	// IgnorePipe starts the program with SIGPIPE ignored, as systemd's IgnoreSIGPIPE= does. The caller's disposition of that
	// signal is lost, because Go's runtime changes it.
	IgnorePipe bool
	// Env is the environment. nil: that of this process.
	Env []string
}

// StartError is the error if the program could not be executed. Code is the exit code of a shell: 127 if the program does not
// exist, 126 if it cannot be executed.
type StartError struct {
	Code int
	Err  error
}

func (e *StartError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *StartError) Unwrap() error { return e.Err }

// Exit codes of StartError.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
)

// Exec enters the namespace and replaces this process by the program. The process keeps its pid, parent, cgroup, limits,
// credentials, descriptors, environment, and the path of its working directory, so that everything that a service manager
// has prepared (LISTEN_FDS with LISTEN_PID, NOTIFY_SOCKET, standard streams) also works for the program. It returns only on
// an error, and never executes the program in another namespace.
//
// If the process is already in the namespace, where the kernel hides the pin, it executes the program directly. A process
// that is in a chroot leaves it.
//
// Call it from the main program, without other goroutines: after an error the thread of the calling goroutine may be in the
// namespace. Runs in: the host's mount namespace or the named one, as root.
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

// openFor opens the namespace to enter. nil means the namespace of the process.
func (s *Store) openFor(o ExecOptions) (*os.File, error) {
	name, at := o.Name, s
	switch {
	case o.Name != "":
		if err := CheckName(o.Name); err != nil {
			return nil, err
		}
	case o.Pin != "":
		dir, base := splitPin(o.Pin)
		name, at = base, &Store{pins: pins{dir}}
	default:
		return nil, nil
	}
	ns, state, err := at.openPin(name)
	switch {
	case err != nil || state == own:
		return nil, err
	case state == absent && o.Name == "":
		return nil, fmt.Errorf("%w: no pin at %s", ErrNotFound, o.Pin)
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

// enter moves the calling thread, which is locked, into the namespace and restores the working directory, because setns(2)
// changes it to the root of the namespace.
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
		return fmt.Errorf("the working directory %s does not exist inside: %w", dir, err)
	}
	return nil
}

// workingDir returns the working directory from the kernel. os.Getwd is not used because it trusts $PWD.
func workingDir() (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Getcwd(buf)
	if err != nil {
		return "", fmt.Errorf("find the working directory: %w", err)
	}
	dir := strings.TrimRight(string(buf[:n]), "\x00")
	if !strings.HasPrefix(dir, "/") { // "(unreachable)...", getcwd(3)
		return "", fmt.Errorf("the working directory %s has no path in this namespace", dir)
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
	// syscall.Exec restores the limit of open files, which the Go runtime raises at start.
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
