package hostsetup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/descriptors"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// EnterOptions are the options of Enter. User, Exe and Args are required.
type EnterOptions struct {
	User string
	// Exe is the absolute path of the program, Args its arguments without the program's name.
	Exe  string
	Args []string
	// Env is the caller's environment. Only a few of its variables are passed on. nil: os.Environ.
	Env []string
}

// enterLimit is the maximum time from leaving root's cgroup to executing the program. It limits how long an account can block
// the caller by freezing its cgroup.
const enterLimit = 20 * time.Second

// Enter runs Exe as the user, inside the user's prepared cgroup. It is for hosts without systemd, where only root can move a
// process into that cgroup. Under systemd no cgroup is prepared, because the node requests one from the user manager, which
// runs after host setup has enabled linger.
//
// If this process has no terminal, neither as a standard stream nor as its controlling terminal, it switches to the user and
// executes Exe with the same pid and streams. Enter then returns only on errors. Otherwise Exe runs in a new session, this
// process relays between Exe and the terminal, and Enter returns the exit code: that of Exe, or 128 plus the number of the
// signal that killed it. Exe never gets a terminal of root. It gets a pseudo terminal if standard input and output are
// terminals, and pipes otherwise.
//
// The program has the account's groups, no capabilities, a clean environment with XDG_RUNTIME_DIR, a new session keyring, a
// limit of at least 65536 open files, no open files except the three streams, and the account's home as its working directory.
// no_new_privs is not set, because newuidmap needs to gain privileges.
//
// Requires root. Call it from the main program while no other goroutine runs.
func Enter(o EnterOptions) (code int, err error) {
	if relayPID := os.Getenv(layout.EnvRelay); relayPID != "" {
		return 1, enterRelayed(o, relayPID)
	}
	a, err := enterable(o)
	if err != nil {
		return 1, err
	}
	if hasTerminal() {
		return relay(o, a)
	}
	return 1, executeAs(a, o, func() error { return nil })
}

// enterRelayed implements Enter in the process that relay starts.
func enterRelayed(o EnterOptions, relayPID string) error {
	// A session leader does not share its terminal with a process of another session.
	if session, err := unix.Getsid(0); err != nil || session != os.Getpid() {
		return fmt.Errorf("enter: %s is set, but this process is not a session leader", layout.EnvRelay)
	}
	a, err := enterable(o)
	if err != nil {
		return err
	}
	return executeAs(a, o, func() error {
		// Set it last, because a change of credentials resets it (prctl(2)).
		if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
			return fmt.Errorf("set the parent death signal: %w", err)
		}
		if relayPID != strconv.Itoa(os.Getppid()) {
			return errors.New("the relay has ended")
		}
		return nil
	})
}

// executeAs switches to the account in its cgroup, calls last and executes the program.
func executeAs(a hostinfo.Account, o EnterOptions, last func() error) error {
	if o.Env == nil {
		o.Env = os.Environ()
	}
	runtimeDir := filepath.Join(hostinfo.UserRuntimeDirs, strconv.Itoa(a.UID))
	// Keyrings and capabilities belong to a thread. The program inherits those of the thread that executes it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	procs, err := openCgroup(a)
	if err != nil {
		return err
	}
	if err := prepareAsRoot(runtimeDir, a); err != nil {
		return fmt.Errorf("enter: %w", err)
	}
	if err := killAfter(enterLimit); err != nil {
		return fmt.Errorf("enter: set the time limit: %w", err)
	}
	if err := switchUser(a); err != nil {
		return fmt.Errorf("enter: switch to user %s: %w", a.Name, err)
	}
	if procs != nil {
		if err := cgroupv2.MoveSelf(procs); err != nil {
			return fmt.Errorf("enter: %w", err)
		}
	}
	if err := os.Chdir(a.Home); err != nil {
		if err := os.Chdir("/"); err != nil {
			return fmt.Errorf("enter: %w", err)
		}
	}
	unix.Umask(0o022)
	if err := last(); err != nil {
		return fmt.Errorf("enter: %w", err)
	}
	argv := append([]string{o.Exe}, o.Args...)
	err = syscall.Exec(o.Exe, argv, userEnv(a, runtimeDir, o.Env))
	hint := ""
	if errors.Is(err, os.ErrPermission) {
		hint = "install the program where " + a.Name + " can read and execute it, such as /usr/local"
	}
	return errdefs.Errorf("enter: execute %s as %s: %w", o.Exe, a.Name, err).Hint(hint)
}

// prepareAsRoot does the steps that need root's privileges.
func prepareAsRoot(runtimeDir string, a hostinfo.Account) error {
	if err := ensureRuntimeDir(runtimeDir, a); err != nil {
		return err
	}
	if err := raiseOpenFiles(); err != nil {
		return fmt.Errorf("raise the limit of open files: %w", err)
	}
	resetOOMScore()
	if err := leaveKeyring(a); err != nil {
		return err
	}
	return descriptors.CloseOnExec()
}

// quoteAll returns the words of a command line for a shell.
func quoteAll(words []string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = hostinfo.Quote(w)
	}
	return strings.Join(quoted, " ")
}

func enterable(o EnterOptions) (hostinfo.Account, error) {
	if os.Geteuid() != 0 {
		return hostinfo.Account{}, errdefs.Preflight("enter: only root can become another user").
			Hint("sudo " + quoteAll(append([]string{o.Exe, "host", "enter", "--user", o.User, "--"}, o.Args...)))
	}
	e := newEnv(Options{User: o.User})
	a, ok, err := e.account(context.Background())
	switch {
	case err != nil:
		return hostinfo.Account{}, fmt.Errorf("enter: %w", err)
	case !ok:
		return hostinfo.Account{}, errdefs.Preflight("enter: user %s does not exist", o.User).Do(errdefs.CreateAccount, o.User)
	case a.UID == 0:
		return hostinfo.Account{}, errdefs.Preflight("enter: user %s is root: a node must be run by an ordinary user", o.User)
	case !filepath.IsAbs(o.Exe):
		return hostinfo.Account{}, errdefs.Preflight("enter: %q is not an absolute path of a program", o.Exe)
	}
	return a, nil
}

// openCgroup opens the account's prepared cgroup for cgroupv2.MoveSelf. It returns nil under systemd if none is prepared.
func openCgroup(a hostinfo.Account) (*os.File, error) {
	tree, err := cgroupv2.DetectHost(cgroupv2.Options{})
	if err != nil {
		return nil, fmt.Errorf("enter: %w", err)
	}
	if !cgroupv2.Prepared(tree, a.UID) {
		if _, err := os.Stat(hostinfo.SystemdBooted); err == nil {
			return nil, nil
		}
		return nil, errdefs.Preflight("enter: no cgroup is prepared for user %s", a.Name).Do(errdefs.SetUpHost, a.Name)
	}
	procs, err := cgroupv2.OpenPrepared(tree, a.UID)
	if err != nil {
		return nil, fmt.Errorf("enter: %w", err)
	}
	return procs, nil
}

// raiseOpenFiles raises both limits to the value that a node needs, unless they are higher. If root in a container may not raise
// the hard limit (CAP_SYS_RESOURCE), it raises only the soft limit, and preflight warns about the hard limit.
func raiseOpenFiles() error {
	var now syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &now); err != nil {
		return err
	}
	// Use syscall.Setrlimit instead of unix.Setrlimit: otherwise Go restores its initial soft limit before exec.
	want := syscall.Rlimit{Cur: max(now.Cur, hostinfo.OpenFiles), Max: max(now.Max, hostinfo.OpenFiles)}
	err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &want)
	if errors.Is(err, unix.EPERM) {
		return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: now.Max, Max: now.Max})
	}
	return err
}

// resetOOMScore raises a negative OOM score of root's session to 0, because the account must not inherit its protection.
func resetOOMScore() {
	const file = "/proc/self/oom_score_adj"
	b, err := os.ReadFile(file)
	if n, convErr := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && convErr == nil && n < 0 {
		_ = os.WriteFile(file, []byte("0"), 0o644)
	}
}

// switchUser drops root's privileges permanently, on all threads (syscall.Setgroups and the other calls apply to every thread).
func switchUser(a hostinfo.Account) error {
	groups, err := hostinfo.Groups("", a)
	if err != nil {
		return err
	}
	if err := syscall.Setgroups(groups); err != nil {
		return fmt.Errorf("setgroups: %w", err)
	}
	if err := syscall.Setresgid(a.GID, a.GID, a.GID); err != nil {
		return fmt.Errorf("setresgid: %w", err)
	}
	if err := syscall.Setresuid(a.UID, a.UID, a.UID); err != nil {
		return fmt.Errorf("setresuid: %w", err)
	}
	if syscall.Setuid(0) == nil {
		return errors.New("root privileges could be regained")
	}
	return dropCapabilities()
}

// dropCapabilities drops the capabilities that this thread may still have: inheritable and ambient ones, and the others if
// securebits preserve them. It keeps the bounding set, because newuidmap needs it.
func dropCapabilities() error {
	err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
	if err != nil && !errors.Is(err, unix.EINVAL) { // ambient capabilities exist since Linux 4.3
		return fmt.Errorf("clear ambient capabilities: %w", err)
	}
	var none [2]unix.CapUserData // version 3 has two words per set
	if err := unix.Capset(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &none[0]); err != nil {
		return fmt.Errorf("capset: %w", err)
	}
	return nil
}

// leaveKeyring joins this thread to a new, empty session keyring, so that the program cannot read keys of root's session. root
// creates it, because the account may have exceeded its key quota.
func leaveKeyring(a hostinfo.Account) error {
	id, err := unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0) // without a name
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		return nil // the kernel has no keys, or the container forbids the system call, also for the account
	}
	if err != nil {
		return fmt.Errorf("create a session keyring: %w", err)
	}
	// Ignore errors: the keyring also works if root owns it, and the account may have exceeded its quota.
	_, _ = unix.KeyctlInt(unix.KEYCTL_CHOWN, id, a.UID, a.GID, 0)
	return nil
}

// killAfter makes the kernel kill this process after d. Executing a program cancels the timer (timer_create(2)). SIGKILL also
// kills a frozen process.
func killAfter(d time.Duration) error {
	event := struct { // struct sigevent, 64 bytes
		value  uint64
		signo  int32
		notify int32 // 0: SIGEV_SIGNAL
		_      [48]byte
	}{signo: int32(unix.SIGKILL)}
	var id int32
	_, _, errno := unix.Syscall(unix.SYS_TIMER_CREATE, unix.CLOCK_MONOTONIC, uintptr(unsafe.Pointer(&event)), uintptr(unsafe.Pointer(&id)))
	if errno != 0 {
		return fmt.Errorf("timer_create: %w", errno)
	}
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(d))}
	_, _, errno = unix.Syscall6(unix.SYS_TIMER_SETTIME, uintptr(id), 0, uintptr(unsafe.Pointer(&spec)), 0, 0, 0)
	if errno != 0 {
		return fmt.Errorf("timer_settime: %w", errno)
	}
	return nil
}

// userPath is the PATH of the program. It includes the directories that contain ip, nft and iptables on Debian.
const userPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// userEnv returns the environment of a login of the account a, and the caller's variables for the terminal, the locale and
// rootlessnode.
func userEnv(a hostinfo.Account, runtimeDir string, caller []string) []string {
	shell := a.Shell
	if shell == "" {
		shell = "/bin/sh"
	}
	env := []string{
		"HOME=" + a.Home, "USER=" + a.Name, "LOGNAME=" + a.Name, "SHELL=" + shell, "PATH=" + userPath, "XDG_RUNTIME_DIR=" + runtimeDir,
	}
	for _, kv := range caller {
		key, _, _ := strings.Cut(kv, "=")
		if key == "TERM" || key == "COLORTERM" || key == "NO_COLOR" || key == "LANG" || strings.HasPrefix(key, "LC_") ||
			strings.HasPrefix(key, "ROOTLESSNODE_") {
			env = append(env, kv)
		}
	}
	return env
}
