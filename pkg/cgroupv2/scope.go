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

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

const scopeSuffix = ".scope"

// scopeTimeout is how long systemd may take to answer: D-Bus's usual time for one call.
const scopeTimeout = 25 * time.Second

// claimScope has the user manager put this process into a scope of its own, with everything delegated, and returns the
// scope's directory. A manager also gets the processes of a login session into its own part of the tree, by the hand of
// the system's manager, which is why no way without D-Bus would do.
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
		o.Log.WithField("unit", unit).Info("ending the scope of an earlier node")
		if err = endScope(ctx, conn, unit); err == nil {
			err = startScope(ctx, conn, unit)
		}
	}
	if err != nil {
		return "", fmt.Errorf("ask systemd for %s: %w", unit, err)
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
		// Without this a scope whose last process was killed stays as failed.
		{Name: "CollectMode", Value: dbus.MakeVariant("inactive-or-failed")},
	}
	return job(ctx, func(ch chan<- string) error {
		_, err := conn.StartTransientUnitContext(ctx, unit, "fail", props, ch)
		return err
	})
}

// endScope kills before it stops: stopping alone would wait for processes that do not mind SIGTERM.
func endScope(ctx context.Context, conn *systemd.Conn, unit string) error {
	// A scope with no process to kill is what we want; of any other fault the stop tells.
	_ = conn.KillUnitWithTarget(ctx, unit, systemd.All, int32(unix.SIGKILL))
	err := job(ctx, func(ch chan<- string) error {
		_, err := conn.StopUnitContext(ctx, unit, "replace", ch)
		return err
	})
	// A unit that is not loaded any more, or not failed, is what we want.
	_ = conn.ResetFailedUnitContext(ctx, unit)
	var de dbus.Error
	if errors.As(err, &de) && de.Name == "org.freedesktop.systemd1.NoSuchUnit" {
		return nil
	}
	return err
}

// job waits for the result that systemd tells for a job.
func job(ctx context.Context, start func(ch chan<- string) error) error {
	ch := make(chan string, 1)
	if err := start(ch); err != nil {
		return err
	}
	select {
	case result := <-ch:
		if result != "done" {
			return fmt.Errorf("job ended as %q", result)
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// dialManager prefers the manager's own socket, which needs no bus. go-systemd's own ways are not used: they start a bus
// when none is there.
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
	return nil, errdefs.Class(errdefs.ErrPreflight, fmt.Errorf("reach the systemd user manager: %w", errors.Join(err, err2)))
}

func dialSocket(ctx context.Context, socket string, hello bool) (*dbus.Conn, error) {
	conn, err := dbus.Dial("unix:path="+dbus.EscapeBusAddressValue(socket), dbus.WithContext(ctx))
	if err != nil {
		return nil, err
	}
	// Only the one method, with the uid: the others look the user up or read files of its home.
	err = conn.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Geteuid()))})
	if err == nil && hello {
		err = conn.Hello()
	}
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}
