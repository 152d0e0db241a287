// Package hostsetup prepares the host, as root and once for each account that runs nodes, for the requirements of a node that an
// ordinary user cannot meet. It can also undo its changes. On hosts without systemd it lets root run a program as the user
// inside the user's delegated cgroup.
//
// A Plan is an ordered list of steps. Each step has a check whether it is needed, equivalent shell commands, and an undo
// function. Running a plan again changes nothing, and --dry-run prints a script with the same effect. Changes are recorded
// below /var/lib/rootlessnode-host, and undo reverts only recorded changes.
//
// It does not install packages, but names the missing ones. Requires root. Runs in: parent.
package hostsetup

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/proc"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
)

// DefaultUser is the account that `make up` creates when root runs it.
const DefaultUser = "rootlessnode"

// Options are the options of NewPlan. Only User is required.
type Options struct {
	// User is the account's name.
	User string
	// CreateUser creates the account if it does not exist.
	CreateUser bool
	// SubidCount is the number of subordinate ids of each kind for the account. 0: 65536. Each pod with its own user namespace
	// (hostUsers: false) needs another 65536.
	SubidCount int64
	// PortStart lowers net.ipv4.ip_unprivileged_port_start to this port, for all users of the host. 0: unchanged.
	PortStart int
	// LXCUserNIC is the bridge to which the account may connect nodes with network.driver lxc-user-nic. Empty: none.
	LXCUserNIC string
	// Exe is the absolute path of this executable, without symbolic links. Steps that write it to files of root, which are the
	// boot script and the AppArmor profile, are refused unless only root can replace the executable.
	Exe string

	// Root is prepended to every path of the host, for tests. Empty: the real host.
	Root string
	// Systemd is whether systemd is PID 1. nil: detect it with /run/systemd/system.
	Systemd *bool
	// LookPath returns the path of a program. nil: hostinfo.RootProgram for root; for others PATH and the sbin directories.
	LookPath func(program string) string
	// Run runs a program as root. Its errors contain the output of the program. nil: run the program.
	Run func(ctx context.Context, program string, args ...string) error
	// Cgroups are the locations of the cgroup tree, for tests.
	Cgroups cgroupv2.Options
	// RootOnly returns nil if only root can replace a file, or else the reason. nil: hostinfo.RootOnly.
	RootOnly func(path string) error
	// EUID returns the effective uid of the caller. nil: os.Geteuid.
	EUID func() int
}

// env is Options with defaults set.
type env struct {
	Options
	systemd bool
}

func newEnv(o Options) *env {
	e := &env{Options: o}
	if e.SubidCount == 0 {
		e.SubidCount = hostinfo.MinSubids
	}
	if e.Run == nil {
		e.Run = run
	}
	if e.EUID == nil {
		e.EUID = os.Geteuid
	}
	if e.LookPath == nil && e.EUID() == 0 {
		e.LookPath = hostinfo.RootProgram
	}
	if e.LookPath == nil {
		e.LookPath = lookPath
	}
	if e.RootOnly == nil {
		e.RootOnly = hostinfo.RootOnly
	}
	if o.Systemd != nil {
		e.systemd = *o.Systemd
	} else {
		e.systemd = e.exists(hostinfo.SystemdBooted)
	}
	return e
}

// quoted returns the account's name as one word of a shell.
func (e *env) quoted() string { return hostinfo.Quote(e.User) }

func (e *env) path(p string) string { return filepath.Join(e.Root, p) }

// exeRefused returns why root must not write the path of this executable to its files, or nil if it may.
func (e *env) exeRefused() error {
	if err := e.RootOnly(e.Exe); err != nil {
		return fmt.Errorf("%w; install below /usr/local first", err)
	}
	return nil
}

func (e *env) exists(p string) bool {
	_, err := os.Stat(e.path(p))
	return err == nil
}

func (e *env) account(ctx context.Context) (hostinfo.Account, bool, error) {
	return hostinfo.Lookup(ctx, e.Root, e.User, e.LookPath("getent"))
}

func lookPath(program string) string {
	if p, err := exec.LookPath(program); err == nil && filepath.IsAbs(p) {
		return p
	}
	return hostinfo.FindProgram(program, hostinfo.SbinDirs()...)
}

func run(ctx context.Context, program string, args ...string) error {
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	return proc.Failure(err, out)
}
