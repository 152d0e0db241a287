// Package userunit installs a node as a service of the account's systemd user manager, so that it starts with the host. It writes files
// below the account's configuration directory and runs systemctl --user.
//
// Runs in: parent's side, as the account.
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

	"github.com/rootlessnode/rootlessnode/internal/atomicfile"
	"github.com/rootlessnode/rootlessnode/internal/proc"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// Template is the name of the unit file, a template unit. Each node is an instance of it.
const Template = "rootlessnode@.service"

// Instance returns the name of the service unit of a node. The name of a node is a DNS label, which needs no escaping.
func Instance(name string) string { return "rootlessnode@" + name + ".service" }

// Socket returns the name of the socket unit that listens at the address of a node's API server and starts the node on demand.
func Socket(name string) string { return "rootlessnode@" + name + ".socket" }

// stopSlack is added to the node's stop timeout for the unit's TimeoutStopSec.
const stopSlack = 15 * time.Second

// startLimit is the unit's TimeoutStartSec. It is long enough to import images on a slow machine.
const startLimit = 15 * time.Minute

// watchdog is the unit's WatchdogSec.
const watchdog = 2 * time.Minute

// Render returns the content of the unit file. exe is the absolute path of rootlessnode, and stop is the node's stop timeout.
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
# systemd kills the remaining processes after this command, which waits until the guard has cleaned up.
ExecStopPost=-%[1]s --name %%i down --ended
Delegate=yes
KillMode=mixed
TasksMax=infinity
Restart=on-failure
RestartSec=5
# Do not restart after errors of the configuration or unmet host requirements.
RestartPreventExitStatus=2 3
WatchdogSec=%[2]d
TimeoutStartSec=%[3]d
TimeoutStopSec=%[4]d

[Install]
WantedBy=default.target
`, word, int(watchdog.Seconds()), int(startLimit.Seconds()), int((stop+stopSlack)/time.Second)), nil
}

// RenderSocket returns the content of the socket unit file of the node called name. address is the listen address, host:port.
func RenderSocket(name, address string) string {
	return fmt.Sprintf(`# Written by "rootlessnode install"; "rootlessnode uninstall" removes it.
[Unit]
Description=API server of Kubernetes node %s, started on demand (rootlessnode)

[Socket]
ListenStream=%s

[Install]
WantedBy=sockets.target
`, name, address)
}

// Word quotes a path as one word of ExecStart (systemd.service(5), "Command lines"; systemd.syntax(7), "Quoting"). It returns an error if
// the path is relative or has control characters.
func Word(path string) (string, error) {
	if !filepath.IsAbs(path) || strings.ContainsFunc(path, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return "", fmt.Errorf("path %q cannot be used in a unit file", path)
	}
	// In the path of the program, % must be escaped, but $ is not special.
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "%", "%%").Replace(path) + `"`, nil
}

// Options are options for New. All are required except Run.
type Options struct {
	// Exe is the path of this program, and ConfigHome is $XDG_CONFIG_HOME or its default.
	Exe, ConfigHome string
	// Run runs systemctl --user. Default: Systemctl.
	Run func(ctx context.Context, args ...string) (string, error)
}

// Installer writes units and enables them with systemctl.
type Installer struct{ o Options }

// New returns an Installer, or an error if a required option is missing.
func New(o Options) (*Installer, error) {
	if o.Exe == "" || o.ConfigHome == "" {
		return nil, errors.New("user units: the program or the configuration directory is not set")
	}
	if o.Run == nil {
		o.Run = Systemctl
	}
	return &Installer{o}, nil
}

// SocketFile returns the path of the socket unit file of the node called name.
func (i *Installer) SocketFile(name string) string {
	return filepath.Join(i.o.ConfigHome, "systemd", "user", Socket(name))
}

// UnitFile returns the path of the template unit file, which all nodes share.
func (i *Installer) UnitFile() string {
	return filepath.Join(i.o.ConfigHome, "systemd", "user", Template)
}

// ConfigFile returns the path of the configuration file that the unit of the node called name uses.
func (i *Installer) ConfigFile(name string) string {
	return filepath.Join(i.o.ConfigHome, "rootlessnode", name+".yaml")
}

// Check checks that the systemd user manager responds.
//
// Errors: of class errdefs.ErrPreflight, with a hint.
func (i *Installer) Check(ctx context.Context) error {
	if _, err := i.o.Run(ctx, "show-environment"); err != nil {
		return errdefs.Preflight("contact the systemd user manager: %w", err).
			Hint("loginctl enable-linger    # starts the manager without a login; for another account, run it as root").
			With(errdefs.Do(errdefs.Start).Note("starts the node without a unit"))
	}
	return nil
}

// Wanted is the input of Install.
type Wanted struct {
	// Name is the name of the node.
	Name string
	// Config is the content of the node's configuration file. If it is nil, the existing file is used.
	Config []byte
	// Stop is the node's stop timeout.
	Stop time.Duration
	// Start starts the node too and waits until it is Ready.
	Start bool
	// OnDemand is the address, host:port, on which systemd listens; the first connection starts the node. If it is empty, the node
	// starts with the user manager.
	OnDemand string
}

// Install writes the files of the unit, enables it and, if w.Start is set, restarts the node. It can be repeated to change the settings.
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

// prepareStart writes or removes the socket unit. It returns the systemctl commands to run before the start.
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
		// systemd does not start a socket while its service is running.
		return append(calls, []string{"stop", service}, []string{"restart", socket}), nil
	}
	if _, err := os.Stat(file); err != nil {
		return [][]string{reload, {"enable", service}}, nil
	}
	if err := i.run(ctx, [][]string{{"disable", "--now", socket}}); err != nil { // needs the unit file
		return nil, err
	}
	return [][]string{reload, {"enable", service}}, os.Remove(file)
}

// Uninstall stops and disables the units of the node called name, and removes the template unit file if no other node uses it. The node's
// configuration and data stay. Uninstalling a node that is not installed succeeds.
func (i *Installer) Uninstall(ctx context.Context, name string) error {
	if _, err := os.Stat(i.UnitFile()); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	calls := [][]string{{"disable", "--now", Instance(name)}}
	if _, err := os.Stat(i.SocketFile(name)); err == nil {
		calls = append([][]string{{"disable", "--now", Socket(name)}}, calls...) // first, because it would start the node again
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
			return errdefs.Errorf("systemctl --user %s: %w", strings.Join(args, " "), err).
				Hintf("systemctl --user status %s\njournalctl --user -u %[1]s", unit)
		}
	}
	return nil
}

// put replaces a file atomically. It does nothing if the file has the content already.
func put(path string, data []byte, mode fs.FileMode) error {
	if old, err := os.ReadFile(path); err == nil && string(old) == string(data) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	return atomicfile.Options{Durable: true}.Write(path, data, mode)
}

// Systemctl runs systemctl --user and returns its output. If XDG_RUNTIME_DIR is not set, as after su and in cron jobs, it sets it to the
// directory that systemd creates for the account.
func Systemctl(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "systemctl", append([]string{"--user"}, args...)...)
	if os.Getenv("XDG_RUNTIME_DIR") == "" {
		cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR=/run/user/"+strconv.Itoa(os.Geteuid()))
	}
	out, err := cmd.CombinedOutput()
	return string(out), proc.Failure(err, out)
}
