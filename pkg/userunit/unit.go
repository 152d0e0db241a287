// Package userunit makes a node a service of its account's systemd user manager, so that it starts with the host.
//
// Runs in: parent's side, as the account. It writes below the account's configuration directory and calls systemctl --user.
package userunit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// Template is the name of the unit file; an instance of it is a node.
const Template = "rootlessnode@.service"

// Instance is the unit of a node. Its name is a DNS label, which needs no escaping.
func Instance(name string) string { return "rootlessnode@" + name + ".service" }

// Socket is the unit that listens for a node's API server and starts the node on first use.
func Socket(name string) string { return "rootlessnode@" + name + ".socket" }

// stopSlack is what systemd adds to the node's own limit before it kills.
const stopSlack = 15 * time.Second

// startLimit is for a node that imports its images on a slow machine.
const startLimit = 15 * time.Minute

// watchdog is how often at least the node must have shown that it answers.
const watchdog = 2 * time.Minute

// Render returns the unit file. exe is the absolute path of rootlessnode, stop the node's own limit for stopping.
func Render(exe string, stop time.Duration) (string, error) {
	word, err := Word(exe)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf(`# Written by "rootlessnode install"; "rootlessnode uninstall" removes it.
[Unit]
Description=Kubernetes node %%i of this account (rootlessnode)
StartLimitIntervalSec=10min
StartLimitBurst=5

[Service]
Type=notify
NotifyAccess=main
ExecStart=%[1]s --name %%i up --foreground --config "%%E/rootlessnode/%%i.yaml"
# What is left after this is killed, and the guard tidies up after the node has ended.
ExecStopPost=-%[1]s --name %%i down --ended
Delegate=yes
KillMode=mixed
TasksMax=infinity
Restart=on-failure
RestartSec=5
# Wrong configuration and hosts that lack something do not get better by trying.
RestartPreventExitStatus=2 3
WatchdogSec=%[2]d
TimeoutStartSec=%[3]d
TimeoutStopSec=%[4]d

[Install]
WantedBy=default.target
`, word, int(watchdog.Seconds()), int(startLimit.Seconds()), int((stop+stopSlack)/time.Second)), nil
}

// RenderSocket returns the file of a Socket unit that listens at address, host:port.
func RenderSocket(name, address string) string {
	return fmt.Sprintf(`# Written by "rootlessnode install"; "rootlessnode uninstall" removes it.
[Unit]
Description=API server of the Kubernetes node %s, which starts on its first use (rootlessnode)

[Socket]
ListenStream=%s

[Install]
WantedBy=sockets.target
`, name, address)
}

// Word writes a path as one word of ExecStart (systemd.service(5), "Command lines"; systemd.syntax(7), "Quoting").
func Word(path string) (string, error) {
	if !filepath.IsAbs(path) || strings.ContainsFunc(path, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return "", fmt.Errorf("path %q cannot stand in a unit", path)
	}
	// In the place of the program $ means nothing; % does.
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "%", "%%").Replace(path) + `"`, nil
}

// Options of an Installer. All are required but Run.
type Options struct {
	// Exe is this program's path, ConfigHome $XDG_CONFIG_HOME or what stands for it.
	Exe, ConfigHome string
	// Run calls systemctl --user; it is replaced in tests.
	Run func(ctx context.Context, args ...string) (string, error)
}

// Installer writes units and has systemd use them.
type Installer struct{ o Options }

// New returns an Installer.
func New(o Options) (*Installer, error) {
	if o.Exe == "" || o.ConfigHome == "" {
		return nil, errors.New("user units: no program or no configuration directory given")
	}
	if o.Run == nil {
		o.Run = Systemctl
	}
	return &Installer{o}, nil
}

// SocketFile is where the Socket unit of the node name is written.
func (i *Installer) SocketFile(name string) string {
	return filepath.Join(i.o.ConfigHome, "systemd", "user", Socket(name))
}

// UnitFile is where the template of all nodes is written.
func (i *Installer) UnitFile() string {
	return filepath.Join(i.o.ConfigHome, "systemd", "user", Template)
}

// ConfigFile is the configuration that the unit of the node name reads.
func (i *Installer) ConfigFile(name string) string {
	return filepath.Join(i.o.ConfigHome, "rootlessnode", name+".yaml")
}

// Check tells whether there is a user manager to talk to. Errors: class ErrPreflight, with a hint.
func (i *Installer) Check(ctx context.Context) error {
	if _, err := i.o.Run(ctx, "show-environment"); err != nil {
		return errdefs.WithHint(errdefs.Class(errdefs.ErrPreflight, fmt.Errorf("ask the systemd user manager: %w", err)),
			"loginctl enable-linger    # as root for another account: the manager then runs without a login\n"+
				"rootlessnode up           # works without a unit too")
	}
	return nil
}

// Wanted is what Install makes of a node.
type Wanted struct {
	Name string
	// Config is the node's configuration. Nil: the one that is there stays; if there is none, that is an error.
	Config []byte
	// Stop is the node's own limit for stopping.
	Stop time.Duration
	// Start starts it too, which takes until the node is Ready.
	Start bool
	// OnDemand is the address, host:port, at which systemd listens and whose first use starts the node. Empty: the node starts
	// with the user manager.
	OnDemand string
}

// Install writes what is wanted and has systemd know it. Doing it again changes what differs, and starts the node anew.
func (i *Installer) Install(ctx context.Context, w Wanted) error {
	name := w.Name
	text, err := Render(i.o.Exe, w.Stop)
	if err != nil {
		return err
	}
	if w.Config != nil {
		if err := put(i.ConfigFile(name), w.Config, 0o600); err != nil {
			return err
		}
	} else if _, err := os.Stat(i.ConfigFile(name)); err != nil {
		return err
	}
	if err := put(i.UnitFile(), []byte(text), 0o644); err != nil {
		return err
	}
	calls, err := i.prepareStart(ctx, w)
	if err != nil {
		return err
	}
	if w.Start {
		calls = append(calls, []string{"restart", Instance(name)})
	}
	return i.run(ctx, calls)
}

// prepareStart writes or removes the Socket unit. It returns what to tell systemd before the start.
func (i *Installer) prepareStart(ctx context.Context, w Wanted) ([][]string, error) {
	service, socket, file := Instance(w.Name), Socket(w.Name), i.SocketFile(w.Name)
	reload := []string{"daemon-reload"}
	if w.OnDemand != "" {
		if err := put(file, []byte(RenderSocket(w.Name, w.OnDemand)), 0o644); err != nil {
			return nil, err
		}
		calls := [][]string{reload, {"disable", service}, {"enable", socket}}
		if !w.Start {
			return append(calls, []string{"start", socket}), nil
		}
		// systemd starts no socket whose service runs.
		return append(calls, []string{"stop", service}, []string{"restart", socket}), nil
	}
	if _, err := os.Stat(file); err != nil {
		return [][]string{reload, {"enable", service}}, nil
	}
	if err := i.run(ctx, [][]string{{"disable", "--now", socket}}); err != nil { // it wants the file
		return nil, err
	}
	return [][]string{reload, {"enable", service}}, os.Remove(file)
}

// Uninstall stops and disables the unit of the node name, and removes the unit file when it was the last. The node's
// configuration and data stay. What is not there is no error.
func (i *Installer) Uninstall(ctx context.Context, name string) error {
	if _, err := os.Stat(i.UnitFile()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	calls := [][]string{{"disable", "--now", Instance(name)}}
	if _, err := os.Stat(i.SocketFile(name)); err == nil {
		calls = append([][]string{{"disable", "--now", Socket(name)}}, calls...) // first: it would start the node again
	}
	if err := i.run(ctx, calls); err != nil {
		return err
	}
	if err := os.Remove(i.SocketFile(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	others, err := filepath.Glob(filepath.Join(filepath.Dir(i.UnitFile()), "*.wants", "rootlessnode@*"))
	if err != nil || len(others) > 0 {
		return errors.Join(err, i.run(ctx, [][]string{{"daemon-reload"}}))
	}
	if err := os.Remove(i.UnitFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return i.run(ctx, [][]string{{"daemon-reload"}})
}

func (i *Installer) run(ctx context.Context, calls [][]string) error {
	for _, args := range calls {
		if _, err := i.o.Run(ctx, args...); err != nil {
			unit := args[len(args)-1]
			return errdefs.WithHint(fmt.Errorf("systemctl --user %s: %w", strings.Join(args, " "), err),
				fmt.Sprintf("systemctl --user status %s\njournalctl --user -u %[1]s", unit))
		}
	}
	return nil
}

// put writes a file whole, or leaves it alone if it is so already.
func put(path string, data []byte, mode fs.FileMode) error {
	if old, err := os.ReadFile(path); err == nil && string(old) == string(data) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	next := path + ".new"
	if err := os.WriteFile(next, data, mode); err != nil {
		return err
	}
	if err := os.Rename(next, path); err != nil {
		return errors.Join(err, os.Remove(next))
	}
	return nil
}

// Systemctl runs systemctl --user and returns what it printed. Where the environment lacks XDG_RUNTIME_DIR, as after su and
// in cron jobs, it is the directory that systemd gives the account.
func Systemctl(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "systemctl", append([]string{"--user"}, args...)...)
	if os.Getenv("XDG_RUNTIME_DIR") == "" {
		cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR=/run/user/"+strconv.Itoa(os.Geteuid()))
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
	}
	return string(out), err
}
