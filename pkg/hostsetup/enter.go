package hostsetup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// EnterOptions says who is become and what is executed then. User, Exe and Args are required.
type EnterOptions struct {
	User string
	// Exe is the absolute path of the program, Args its arguments without the program's name.
	Exe  string
	Args []string
	// Env is the caller's environment, of which little is passed on. nil: os.Environ.
	Env []string
}

// Enter turns this process, root's, into one of the user inside the user's prepared cgroup and executes Exe: for hosts
// without systemd, where only root can put a process there. Under systemd no cgroup is prepared; there the node asks the
// user's manager for one, which runs once host setup has enabled linger. It returns only with an error.
//
// The process keeps its pid, terminal and descriptors. It gets the account's groups, a clean environment with
// XDG_RUNTIME_DIR, at least 65536 open files, and the account's home as its working directory. no_new_privs stays as it
// is, for newuidmap needs its privilege.
//
// Who may call: root, from the main program, with nothing else going on.
func Enter(o EnterOptions) error {
	a, err := enterable(o)
	if err != nil {
		return err
	}
	if o.Env == nil {
		o.Env = os.Environ()
	}
	runtimeDir := filepath.Join(hostinfo.UserRuntimeDirs, strconv.Itoa(a.UID))
	if err := enterCgroup(a); err != nil {
		return err
	}
	if err := ensureRuntimeDir(runtimeDir, a); err != nil {
		return fmt.Errorf("enter: %w", err)
	}
	if err := raiseOpenFiles(); err != nil {
		return fmt.Errorf("enter: limit of open files: %w", err)
	}
	resetOOMScore()
	if err := become(a); err != nil {
		return fmt.Errorf("enter: become %s: %w", a.Name, err)
	}
	if err := os.Chdir(a.Home); err != nil {
		if err := os.Chdir("/"); err != nil {
			return fmt.Errorf("enter: %w", err)
		}
	}
	unix.Umask(0o022)
	argv := append([]string{o.Exe}, o.Args...)
	err = syscall.Exec(o.Exe, argv, userEnv(a, runtimeDir, o.Env))
	hint := ""
	if errors.Is(err, os.ErrPermission) {
		hint = "install rootlessnode where " + a.Name + " can read and execute it, such as /usr/local"
	}
	return errdefs.WithHint(fmt.Errorf("enter: execute %s as %s: %w", o.Exe, a.Name, err), hint)
}

func enterable(o EnterOptions) (hostinfo.Account, error) {
	refuse := func(err error, hint string) (hostinfo.Account, error) {
		return hostinfo.Account{}, errdefs.Class(errdefs.ErrPreflight, errdefs.WithHint(err, hint))
	}
	if os.Geteuid() != 0 {
		return refuse(errors.New("enter: only root can become another user"),
			fmt.Sprintf("sudo %s host enter --user %s -- %s", o.Exe, o.User, strings.Join(o.Args, " ")))
	}
	e := newEnv(Options{User: o.User})
	a, ok, err := e.account(context.Background())
	switch {
	case err != nil:
		return hostinfo.Account{}, fmt.Errorf("enter: %w", err)
	case !ok:
		return refuse(fmt.Errorf("enter: user %s does not exist", o.User),
			fmt.Sprintf("%s host setup --user %s --create-user", o.Exe, hostinfo.Quote(o.User)))
	case a.UID == 0:
		return refuse(fmt.Errorf("enter: user %s is root: a node is run by an ordinary user", o.User), "")
	case !filepath.IsAbs(o.Exe):
		return refuse(fmt.Errorf("enter: %q is not an absolute path of a program", o.Exe), "")
	}
	return a, nil
}

func enterCgroup(a hostinfo.Account) error {
	tree, err := cgroupv2.DetectHost(cgroupv2.Options{})
	if err != nil {
		return fmt.Errorf("enter: %w", err)
	}
	if !owned(preparedDir(tree, a.UID), a.UID) {
		if _, err := os.Stat(hostinfo.SystemdBooted); err == nil {
			return nil
		}
		return errdefs.Class(errdefs.ErrPreflight, errdefs.WithHint(
			fmt.Errorf("enter: no cgroup is prepared for %s", a.Name), "rootlessnode host setup --user "+a.Name))
	}
	if err := cgroupv2.EnterPrepared(tree, a.UID, os.Getpid()); err != nil {
		return fmt.Errorf("enter: %w", err)
	}
	return nil
}

// raiseOpenFiles lifts both limits to what a node wants; more stays more. Root of a container may not raise the hard
// one (CAP_SYS_RESOURCE): then the soft one goes up to it, and preflight warns of the rest.
func raiseOpenFiles() error {
	var now syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &now); err != nil {
		return err
	}
	// syscall.Setrlimit, not unix's: Go restores the soft limit it found at start before exec unless told so by this call.
	want := syscall.Rlimit{Cur: max(now.Cur, hostinfo.OpenFiles), Max: max(now.Max, hostinfo.OpenFiles)}
	err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &want)
	if errors.Is(err, unix.EPERM) {
		return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: now.Max, Max: now.Max})
	}
	return err
}

// resetOOMScore drops a protection that root's session may have: the user could not lower it for components again.
func resetOOMScore() {
	const file = "/proc/self/oom_score_adj"
	b, err := os.ReadFile(file)
	if n, convErr := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && convErr == nil && n < 0 {
		_ = os.WriteFile(file, []byte("0"), 0o644)
	}
}

// become drops root for good, on all threads (syscall.Setgroups and its company act on each of them).
func become(a hostinfo.Account) error {
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
		return errors.New("root could be had again")
	}
	return nil
}

// userPath is the PATH of a login, with the directories that hold ip, nft and iptables on Debian.
const userPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// userEnv is the environment of a login of a, and of the caller's only what concerns the terminal and us.
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
