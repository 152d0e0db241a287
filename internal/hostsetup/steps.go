package hostsetup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// accountStep creates the account. It is an ordinary account with a home directory for the node's data, a shell for administrators,
// and no password.
func accountStep(p *Plan) (Step, error) {
	e := p.env
	if !e.CreateUser && !p.record.has("account") {
		return Step{}, nil
	}
	args := []string{"--create-home", "--shell", e.shell(), e.User}
	return Step{
		Name: "account", Title: "create the account " + e.User, Why: "a node must be run by an ordinary user, never by root",
		Commands: []string{"useradd " + strings.Join(args, " ")}, // a new name has no special characters
		Needed: func() (bool, error) {
			_, ok, err := e.account(context.Background())
			return !ok, err
		},
		Do: func(ctx context.Context) error {
			program := e.LookPath("useradd")
			if program == "" {
				return errors.New("program useradd not found: " + e.distro().InstallCommand([]string{"useradd"}))
			}
			// useradd may add subordinate ids for the new account (login.defs). Record these rows too.
			before := e.ownRows()
			if err := e.Run(ctx, program, args...); err != nil {
				return err
			}
			p.record.add("account", entry{After: map[string]string{"account": e.User}})
			if after := e.ownRows(); len(after) > len(before) {
				p.record.add("subids", entry{Rows: after})
			}
			return nil
		},
		Undo: func(ctx context.Context) error {
			// Keep the home directory, because it may contain data of nodes. userdel fails while the account has processes.
			return e.Run(ctx, e.LookPath("userdel"), e.User)
		},
	}, nil
}

func (e *env) shell() string {
	if e.exists("/bin/bash") {
		return "/bin/bash"
	}
	return "/bin/sh"
}

// nodePrograms returns the programs of the host that a node with the default configuration uses. slirp4netns is optional: it performs
// better than the built-in driver.
func nodePrograms() []string {
	return slices.Concat(hostinfo.IDMapPrograms(), hostinfo.NodePrograms(), []string{hostinfo.TapProgram, hostinfo.NFTProgram, "conntrack", "slirp4netns"})
}

func packageStep(p *Plan) (Step, error) {
	e := p.env
	var missing []string
	for _, program := range nodePrograms() {
		if e.LookPath(program) == "" {
			missing = append(missing, program)
		}
	}
	s := Step{
		Name: "packages", Title: "install the programs that a node runs", Why: "not found: " + strings.Join(missing, ", "),
		Needed: func() (bool, error) { return len(missing) > 0, nil },
	}
	if len(missing) > 0 {
		s.Commands = []string{e.distro().InstallCommand(missing)}
	}
	return s, nil
}

// noDevice adds to the error of mknod(2) how the engine provides the device, if root of this container may not create devices: it lacks
// CAP_MKNOD, or it is in a user namespace, as with rootless Podman.
func noDevice(e *env, err error) error {
	if !errors.Is(err, unix.EPERM) {
		return err
	}
	settings := hostinfo.OuterSettings(hostinfo.TunInContainer(hostinfo.DetectContainer(e.Root + "/")))
	return errdefs.Class(errdefs.ErrPreflight, errdefs.WithHint(err, strings.Join(settings, "\n")))
}

// tunStep makes the device usable. Mode 0666 is usual, because the device grants no privileges without CAP_NET_ADMIN in a network
// namespace (kernel: Documentation/networking/tuntap.rst).
func tunStep(p *Plan) (Step, error) {
	e := p.env
	const dev = hostinfo.TunDevice
	const want = 0o666
	mode := func() (os.FileMode, bool) {
		st, err := os.Stat(e.path(dev))
		if err != nil {
			return 0, false
		}
		return st.Mode().Perm(), true
	}
	s := Step{
		Name: "tun", Title: "let users open " + dev, Why: "the node's network interface is a tap device",
		Needed: func() (bool, error) {
			m, ok := mode()
			return !ok || m&want != want, nil
		},
		Do: func(context.Context) error {
			before, ok := mode()
			if !ok {
				if err := os.MkdirAll(filepath.Dir(e.path(dev)), 0o755); err != nil {
					return err
				}
				if err := unix.Mknod(e.path(dev), unix.S_IFCHR|want, int(unix.Mkdev(10, 200))); err != nil {
					return noDevice(e, &os.PathError{Op: "mknod", Path: dev, Err: err})
				}
			}
			if err := os.Chmod(e.path(dev), want); err != nil {
				return err
			}
			was := "absent"
			if ok {
				was = fmt.Sprintf("%04o", before)
			}
			p.record.add("tun", entry{Before: map[string]string{dev: was}, After: map[string]string{dev: "0666"}})
			return nil
		},
		Undo: func(context.Context) error {
			before := p.record.Steps["tun"].Before[dev]
			if p.record.usedByOthers("tun", dev) || !e.exists(dev) {
				return nil
			}
			if before == "absent" {
				return os.Remove(e.path(dev))
			}
			m, err := strconv.ParseUint(before, 8, 9)
			if err != nil {
				return err
			}
			return os.Chmod(e.path(dev), os.FileMode(m))
		},
	}
	if _, ok := mode(); !ok {
		s.Commands = []string{"mkdir -p " + filepath.Dir(dev), "mknod " + dev + " c 10 200"}
	}
	s.Commands = append(s.Commands, "chmod 0666 "+dev)
	if !e.systemd {
		s.Note = errdefs.Text("# without udev this lasts until the next reboot: run host setup at each boot")
	}
	return s, nil
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
