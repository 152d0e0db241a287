package cgroupv2

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	systemd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

const scopeSuffix = ".scope"

// scopeTimeout is the timeout for systemd's answer: D-Bus's default for one call.
const scopeTimeout = 25 * time.Second

// claimScope has the user manager create a scope for this process, with everything delegated, and returns the scope's
// directory. D-Bus is required because the user manager has the system manager move processes of a login session, which
// the account itself may not do.
func claimScope(ctx context.Context, name string, o Options) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, scopeTimeout) // closes the connection too
	defer cancel()
	conn, err := dialManager(ctx, o)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	unit := layout.Cgroup(name) + scopeSuffix
	err = startScope(ctx, conn, unit)
	var de dbus.Error
	if errors.As(err, &de) && de.Name == "org.freedesktop.systemd1.UnitExists" {
		o.Log.WithField("unit", unit).Info("stopping the scope of an earlier node")
		if err = endScope(ctx, conn, unit); err == nil {
			err = startScope(ctx, conn, unit)
		}
	}
	if err != nil {
		return "", fmt.Errorf("start systemd unit %s: %w", unit, err)
	}
	h, err := DetectHost(o)
	if err != nil {
		return "", err
	}
	if filepath.Base(h.Self) != unit {
		return "", fmt.Errorf("systemd started %s, but this process is in %s", unit, h.Self)
	}
	return h.SelfDir(), nil
}

func startScope(ctx context.Context, conn *systemd.Conn, unit string) error {
	props := []systemd.Property{
		systemd.PropDescription("Rootless Kubernetes node"),
		systemd.PropPids(uint32(os.Getpid())),
		{Name: "Delegate", Value: dbus.MakeVariant(true)},
		// Otherwise a scope whose last process was killed stays loaded as failed.
		{Name: "CollectMode", Value: dbus.MakeVariant("inactive-or-failed")},
	}
	return runJob(ctx, func(ch chan<- string) error {
		_, err := conn.StartTransientUnitContext(ctx, unit, "fail", props, ch)
		return err
	})
}

// endScope kills the processes of a scope and stops it. A stop without the kill would wait for processes that ignore
// SIGTERM.
func endScope(ctx context.Context, conn *systemd.Conn, unit string) error {
	// Ignore errors: the scope may have no processes, and other errors also occur in the stop.
	_ = conn.KillUnitWithTarget(ctx, unit, systemd.All, int32(unix.SIGKILL))
	err := runJob(ctx, func(ch chan<- string) error {
		_, err := conn.StopUnitContext(ctx, unit, "replace", ch)
		return err
	})
	// Ignore errors: the unit may be unloaded already, or not failed.
	_ = conn.ResetFailedUnitContext(ctx, unit)
	var de dbus.Error
	if errors.As(err, &de) && de.Name == "org.freedesktop.systemd1.NoSuchUnit" {
		return nil
	}
	return err
}

// runJob starts a systemd job and waits for its result.
func runJob(ctx context.Context, start func(ch chan<- string) error) error {
	ch := make(chan string, 1)
	if err := start(ch); err != nil {
		return err
	}
	select {
	case result := <-ch:
		if result != "done" {
			return fmt.Errorf("job result %q", result)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// dialManager connects to the manager's private socket, which needs no bus, or else to the session bus. It does not use
// go-systemd's own dialers, because they start a bus if there is none.
func dialManager(ctx context.Context, o Options) (*systemd.Conn, error) {
	private, bus := managerSockets(o)
	conn, err := systemd.NewConnection(func() (*dbus.Conn, error) { return dialSocket(ctx, private, false) })
	if err == nil {
		return conn, nil
	}
	conn, err2 := systemd.NewConnection(func() (*dbus.Conn, error) { return dialSocket(ctx, bus, true) })
	if err2 == nil {
		return conn, nil
	}
	return nil, errdefs.Preflight("reach the systemd user manager: %w", errors.Join(err, err2))
}

func dialSocket(ctx context.Context, socket string, hello bool) (*dbus.Conn, error) {
	conn, err := dbus.Dial("unix:path="+dbus.EscapeBusAddressValue(socket), dbus.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	// Offer only EXTERNAL with the uid: the other methods look up the user or read files in its home directory.
	err = conn.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Geteuid()))})
	if err == nil && hello {
		err = conn.Hello()
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}
