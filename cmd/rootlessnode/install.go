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
	"strings"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/node"
	"github.com/rootlessnode/rootlessnode/pkg/status"
	"github.com/rootlessnode/rootlessnode/pkg/userunit"
)

func newInstall(a *app) *cobra.Command {
	var f nodeFlags
	var noStart, onDemand bool
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Make the node a service of your systemd user manager",
		Long: `Write rootlessnode@.service below ~/.config/systemd/user and the node's
configuration to ~/.config/rootlessnode/NAME.yaml, enable the unit and start it.
The node then starts with the host if linger is on, and with your first login if
not. Doing it again changes what differs; without flags the configuration that is
there stays.`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.install(cmd.Context(), f, f.given(cmd.Flags()), !noStart, onDemand)
		},
	}
	f.register(cmd)
	cmd.Flags().BoolVar(&noStart, "no-start", false, "only enable it")
	cmd.Flags().BoolVar(&onDemand, "on-demand", false, "start with the first use of the API server's port, not with the host")
	return cmd
}

func newUninstall(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "uninstall",
		Short: "Take the node out of your systemd user manager",
		Long: `Stop and disable the node's unit, and remove the unit file when no other node of
yours uses it. Configuration and data stay.`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			i, err := a.installer()
			if err != nil {
				return err
			}
			if err := i.Check(cmd.Context()); err != nil {
				return err
			}
			if err := i.Uninstall(cmd.Context(), a.name); err != nil {
				return err
			}
			a.printf("node %q is no service any more; %s and its data stay\n", a.name, i.ConfigFile(a.name))
			return nil
		},
	}
}

func (a *app) installer() (*userunit.Installer, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	home := a.env("XDG_CONFIG_HOME")
	if !filepath.IsAbs(home) { // such a value is to be ignored (XDG Base Directory Specification)
		dir, err := os.UserHomeDir()
		if err != nil {
			return nil, fmt.Errorf("find the home directory: %w", err)
		}
		home = filepath.Join(dir, ".config")
	}
	return userunit.New(userunit.Options{Exe: exe, ConfigHome: home, Run: a.userSystemctl})
}

func (a *app) install(ctx context.Context, f nodeFlags, given, start, onDemand bool) error {
	i, err := a.installer()
	if err != nil {
		return err
	}
	if err := i.Check(ctx); err != nil {
		return err
	}
	file := i.ConfigFile(a.name)
	if _, err := os.Stat(file); err == nil && !given {
		f.file = file
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	} else {
		given = true
	}
	cfg, err := f.build(a.name)
	if err != nil {
		return err
	}
	var text []byte
	if given {
		if text, err = config.Marshal(cfg); err != nil {
			return err
		}
	}
	n, err := a.newNode(cfg, node.Options{Log: a.logger()}) // it completes the config and judges it
	if err != nil {
		return err
	}
	if err := a.notBeside(ctx, n); err != nil {
		return err
	}
	if err := a.hasJoined(n); err != nil {
		return err
	}
	if _, err := n.Check(ctx); err != nil {
		return err
	}
	w := userunit.Wanted{Name: a.name, Config: text, Stop: n.Config().Timeouts.Stop.D(), Start: start}
	if onDemand {
		if w.OnDemand, err = onDemandAddress(n.Config()); err != nil {
			return err
		}
	}
	if err := i.Install(ctx, w); err != nil {
		return err
	}
	a.printf("unit     %s\nconfig   %s\n", i.UnitFile(), file)
	if start {
		a.printf("node %q is Ready; look at it: systemctl --user status %s\n", a.name, userunit.Instance(a.name))
	}
	a.warnOfLinger()
	return nil
}

// onDemandAddress is where systemd has to listen for the API server.
func onDemandAddress(c *config.NodeConfig) (string, error) {
	if c.Joins() {
		return "", errdefs.WithHint(errdefs.Class(errdefs.ErrConfig,
			errors.New("start on demand: a worker has no API server's port at which somebody knocks")), "rootlessnode install    # without --on-demand")
	}
	if d := c.Ports.Driver; d != config.PortsBuiltin && d != config.DriverAuto {
		return "", errdefs.WithHint(errdefs.Class(errdefs.ErrConfig,
			fmt.Errorf("start on demand: the port driver %s cannot take over a socket of systemd's", d)), "ports.driver: "+config.PortsBuiltin)
	}
	return net.JoinHostPort(c.API.BindAddress, strconv.Itoa(c.API.Port)), nil
}

// hasJoined refuses a worker that needs a token for its first start: a unit has none.
func (a *app) hasJoined(n handle) error {
	server := n.Config().Join.Server
	if _, err := os.Stat(n.Data().JoinRecord()); server == "" || !errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return errdefs.WithHint(errdefs.Class(errdefs.ErrPreflight, fmt.Errorf("node %q has not joined %s yet, and a service has no token to do so", a.name, server)),
		a.command("up --join "+server+" --token-file FILE --ca-cert-hash sha256:...")+"\n"+a.command("down")+"\n"+a.command("install"))
}

// notBeside refuses a node that runs already, unless it is the unit's own.
func (a *app) notBeside(ctx context.Context, n handle) error {
	s, err := n.Status(ctx)
	if err != nil {
		return err
	}
	if s.State == status.NodeStopped || s.State == status.NodeFailed {
		return nil
	}
	// A service that is not Ready yet is the unit's own too; is-active(1) calls that no success.
	show, err := a.userSystemctl(ctx, "show", "--property=ActiveState", "--value", userunit.Instance(a.name))
	if own := strings.TrimSpace(show); err == nil && (own == "active" || own == "activating" || own == "reloading") {
		return nil
	}
	return errdefs.WithHint(errdefs.Class(errdefs.ErrPreflight, fmt.Errorf("node %q runs already, and not as a service", a.name)),
		a.command("down")+"\n"+a.command("install"))
}

// warnOfLinger says that a user manager ends with the last login, unless linger is on (loginctl(1)).
func (a *app) warnOfLinger() {
	u, err := user.Current()
	if err != nil {
		return
	}
	if _, err := os.Stat(filepath.Join("/var/lib/systemd/linger", u.Username)); err == nil {
		return
	}
	a.printf("warning: linger is off, so the node ends when you log out and starts when you log in\n"+
		"hint:\n  sudo loginctl enable-linger %s\n", u.Username)
}
