// Package hostsetup does root's part, once for each account that runs nodes: what an ordinary user cannot do for itself
// and a node cannot do without. It also takes back what it did, and on hosts without systemd lets root become the user
// inside the user's delegated cgroup.
//
// A Plan is an ordered list of steps. Each knows whether it is needed, the shell lines that do it, and how to undo it;
// so a plan that is run twice changes nothing the second time, and --dry-run prints a script that does the same.
// What was done is recorded below /var/lib/rootlessnode-host, and only that is taken back.
//
// It installs no packages: it names them. Who may call: root. Runs in: parent.
package hostsetup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
)

// DefaultUser is the account that `make up` makes for root.
const DefaultUser = "rootlessnode"

// Options says for whom and how the host is set up. Only User is required.
type Options struct {
	// User is the account's name.
	User string
	// CreateUser makes the account if there is none.
	CreateUser bool
	// SubidCount is how many subordinate ids of each kind the account is to have. 0: 65536. Pods with user namespaces of
	// their own (hostUsers: false) need a further 65536 each.
	SubidCount int64
	// PortStart lowers net.ipv4.ip_unprivileged_port_start to it, for all users of the host. 0: left alone.
	PortStart int
	// LXCUserNIC is the bridge that the account may connect nodes to by network.driver lxc-user-nic. Empty: none.
	LXCUserNIC string
	// Exe is the absolute path of this executable, without links. Steps that write it into files of root, the boot script and
	// AppArmor's profile, are refused unless only root can replace it.
	Exe string

	// Root is put before every path of the host, for tests. Empty: the real host.
	Root string
	// Systemd says whether systemd is PID 1. nil: /run/systemd/system tells.
	Systemd *bool
	// LookPath finds a program. nil: hostinfo.RootProgram for root, on PATH and in the sbin directories for others.
	LookPath func(program string) string
	// Run runs a program as root and returns an error with what it complained of. nil: it does.
	Run func(ctx context.Context, program string, args ...string) error
	// Cgroups says where the cgroup tree is, for tests.
	Cgroups cgroupv2.Options
	// RootOnly says why accounts can replace a file. nil: hostinfo.RootOnly.
	RootOnly func(path string) error
	// EUID is the caller's effective uid. nil: asked.
	EUID func() int
}

// env is Options with everything filled in.
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

func (e *env) path(p string) string { return filepath.Join(e.Root, p) }

// exeRefused says why root must not persist the path of this executable; nil if it may.
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
	if text := strings.TrimSpace(string(out)); err != nil && text != "" {
		return errors.New(strings.ReplaceAll(text, "\n", "; "))
	}
	return err
}
