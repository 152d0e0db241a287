package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/userunit"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/node"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// installable is the part of node.Node for install.
type installable interface {
	handle
	checker
	Status(ctx context.Context) (*status.Status, error)
	Data() layout.Data
}

var _ installable = (*node.Node)(nil)

// installOptions are the flags of install.
type installOptions struct {
	nodeFlags
	start, onDemand bool
}

func newInstall(a *app) *cobra.Command {
	var o installOptions
	var noStart bool
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Install the node as a service of your systemd user manager",
		Long: `Write rootlessnode@.service below ~/.config/systemd/user and the node's configuration
to ~/.config/rootlessnode/NAME.yaml, enable the unit and start it. The node then
starts at boot if lingering is enabled, otherwise at your first login. Running it again
applies changes; without flags the existing configuration is kept.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.start = !noStart
			return install(cmd.Context(), a, o)
		},
	}
	o.register(cmd)
	cmd.Flags().BoolVar(&noStart, "no-start", false, "enable the unit without starting it")
	cmd.Flags().BoolVar(&o.onDemand, "on-demand", false, "start at the first connection to the API server's port, not at boot")
	return cmd
}

func newUninstall(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "uninstall",
		Short: "Remove the node's service from your systemd user manager",
		Long: `Stop and disable the node's unit, and remove the unit file if no other node of the
account uses it. Configuration and data are kept.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			i, err := newInstaller(cmd.Context(), a)
			if err != nil {
				return err
			}
			if err := i.Uninstall(cmd.Context(), a.name); err != nil {
				return err
			}
			a.printf("uninstalled the service of node %q; %s and the node's data are kept\n", a.name, i.ConfigFile(a.name))
			return nil
		},
	}
}

// newInstaller returns an installer whose check succeeded.
func newInstaller(ctx context.Context, a *app) (*userunit.Installer, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the path of this program: %w", err)
	}
	home := a.env("XDG_CONFIG_HOME")
	if !filepath.IsAbs(home) { // relative paths are ignored (XDG Base Directory Specification)
		dir, err := os.UserHomeDir()
		if err != nil {
			return nil, fmt.Errorf("find the home directory: %w", err)
		}
		home = filepath.Join(dir, ".config")
	}
	i, err := userunit.New(userunit.Options{Exe: exe, ConfigHome: home, Run: a.userSystemctl})
	if err != nil {
		return nil, err
	}
	return i, i.Check(ctx)
}

func install(ctx context.Context, a *app, o installOptions) error {
	i, err := newInstaller(ctx, a)
	if err != nil {
		return err
	}
	given, file := o.given(), i.ConfigFile(a.name)
	if _, err := os.Stat(file); err == nil && !given {
		o.file = file
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	} else {
		given = true
	}
	cfg, _, err := o.build(a)
	if err != nil {
		return err
	}
	var text []byte
	if given {
		if text, err = config.Marshal(cfg); err != nil {
			return err
		}
	}
	h, err := a.newNode(cfg, node.Options{Log: a.logger()}) // completes and validates the config
	if err != nil {
		return err
	}
	n := h.(installable)
	if err := checkNotRunning(ctx, a, n); err != nil {
		return err
	}
	if err := checkJoined(a, n); err != nil {
		return err
	}
	if _, err := n.Check(ctx); err != nil {
		return err
	}
	w := userunit.Wanted{Name: a.name, Config: text, Stop: n.Config().Timeouts.Stop.D(), Start: o.start}
	if o.onDemand {
		if w.OnDemand, err = onDemandAddress(a, n.Config()); err != nil {
			return err
		}
	}
	if err := i.Install(ctx, w); err != nil {
		return err
	}
	a.printf("unit     %s\nconfig   %s\n", i.UnitFile(), file)
	if o.start {
		a.printf("node %q is Ready; to show its status: systemctl --user status %s\n", a.name, userunit.Instance(a.name))
	}
	warnOfLinger(a)
	return nil
}

// onDemandAddress returns the address on which systemd listens for the API server.
func onDemandAddress(a *app, c *config.NodeConfig) (string, error) {
	if c.Joins() {
		return "", errdefs.Config("start on demand: a worker has no API server port to listen on").
			Hint(a.command("install    # without --on-demand"))
	}
	if d := c.Ports.Driver; d != config.PortsBuiltin && d != config.DriverAuto {
		return "", errdefs.Config("start on demand: port driver %s does not support sockets passed by systemd", d).
			Hint("ports.driver: " + config.PortsBuiltin)
	}
	if c.API.Port == 0 {
		return "", errdefs.Config("start on demand: systemd needs a fixed port to listen on, and api.port is 0").
			Hint(a.command("install --on-demand --set api.port=6443"))
	}
	return net.JoinHostPort(c.API.BindAddress, strconv.Itoa(c.API.Port)), nil
}

// checkJoined returns an error for a worker that needs a bootstrap token for its first start, because a unit has no token.
func checkJoined(a *app, n installable) error {
	server := n.Config().Join.Server
	if _, err := os.Stat(n.Data().JoinRecord()); server == "" || !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errdefs.Preflight("node %q has not joined %s yet, and a service has no bootstrap token to join with", a.name, server).
		Hint(a.command("up --join "+server+" --token-file FILE --ca-cert-hash sha256:...") + "\n" + a.command("down") + "\n" + a.command("install"))
}

// checkNotRunning returns an error if the node is already running, unless the unit runs it.
func checkNotRunning(ctx context.Context, a *app, n installable) error {
	s, err := n.Status(ctx)
	if err != nil {
		return err
	}
	if s.State == status.NodeStopped || s.State == status.NodeFailed {
		return nil
	}
	if isService(ctx, a) {
		return nil
	}
	return errdefs.Preflight("node %q is already running, but not as a service", a.name).Hint(a.command("down") + "\n" + a.command("install"))
}

// warnOfLinger prints a warning if lingering is disabled, because the user manager then ends with the last login
// (loginctl(1)).
func warnOfLinger(a *app) {
	u, err := user.Current()
	if err != nil {
		return
	}
	if _, err := os.Stat(filepath.Join("/var/lib/systemd/linger", u.Username)); err == nil {
		return
	}
	a.printf("warning: lingering is disabled: the node stops when you log out and starts when you log in\n"+
		"hint:\n  sudo loginctl enable-linger %s\n", u.Username)
}
