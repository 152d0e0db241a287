package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/node"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// portTimeout limits the time that `ports add` and `ports remove` wait for a port to open or close.
const portTimeout = 15 * time.Second

// portNode is the part of node.Node for forwarded ports.
type portNode interface {
	Status(ctx context.Context) (*status.Status, error)
	WatchStatus(ctx context.Context, fn func(*status.Status) error) error
	AddForward(ctx context.Context, forward string) ([]status.Port, error)
	RemoveForward(ctx context.Context, forward string) error
}

var _ portNode = (*node.Node)(nil)

func newPorts(a *app) *cobra.Command {
	var watch bool
	cmd := &cobra.Command{
		Use:   "ports",
		Short: "Show and manage the host ports that are forwarded to the node",
		Long: `Show the host ports that are forwarded to the node, for Services, pods, the
configuration and "ports add": what each port serves, its state, since when, and its
error. A waiting port is closed because its Service has no ready endpoint. A failed
port is retried automatically. A refused port belongs to another Service or pod, or the
configuration does not allow it.`,
		Example: `  rootlessnode ports
  rootlessnode ports -w
  rootlessnode ports add 8080:30080`,
		Args: noCommand,
		RunE: withNode(a, func(ctx context.Context, n portNode, _ []string) error {
			if !watch {
				return listPorts(ctx, a, n)
			}
			ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM)
			defer stop()
			return a.hintNotRunning(watchPorts(ctx, a, n))
		}),
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "also show changes, until the node stops; with -o json one object per line")
	return group(a.withOutput(cmd), newPortsAdd(a), newPortsRemove(a))
}

func newPortsAdd(a *app) *cobra.Command {
	return a.withOutput(&cobra.Command{
		Use:   "add [HOSTIP:]HOSTPORT:NODEPORT[/tcp|/udp]",
		Short: "Forward a host port to a port of the node",
		Long: `Forward a host port to a port of the node until the forward is removed, also after
restarts of the node. Both ports may be ranges; with host port 0 the node picks a free
port. A port that cannot be forwarded is reported, kept and retried, and the exit code
is 1.`,
		Example: `  rootlessnode ports add 8080:30080
  rootlessnode ports add 0.0.0.0:5353:53/udp
  rootlessnode ports add 9000-9009:9000-9009
  rootlessnode ports add 0:8080`,
		Args: arguments(1, 1),
		RunE: withNode(a, func(ctx context.Context, n portNode, args []string) error { return addPort(ctx, a, n, args[0]) }),
	})
}

func newPortsRemove(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "remove FORWARD|HOSTPORT",
		Short: "Remove a forward that was created with add",
		Args:  arguments(1, 1),

		ValidArgsFunction: completeManualPorts(a),
		RunE: withNode(a, func(ctx context.Context, n portNode, args []string) error {
			ctx, cancel := context.WithTimeout(ctx, portTimeout)
			defer cancel()
			return a.hintNotRunning(timeoutError(ctx, "close", args[0], n.RemoveForward(ctx, args[0])))
		}),
	}
}

// timeoutError returns an error of class ErrTimeout if ctx has expired, and err otherwise.
func timeoutError(ctx context.Context, operation, forward string, err error) error {
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return errdefs.Timeout("%s forward %s: timed out after %s", operation, forward, portTimeout).Do(errdefs.ListForwards)
	}
	return err
}

func addPort(ctx context.Context, a *app, n portNode, forward string) error {
	ctx, cancel := context.WithTimeout(ctx, portTimeout)
	defer cancel()
	ports, err := n.AddForward(ctx, forward)
	if err != nil {
		return a.hintNotRunning(timeoutError(ctx, "open", forward, err))
	}
	if a.output == "json" {
		a.printJSON(a.out, ports)
	}
	var errs []error
	for _, p := range ports {
		switch {
		case p.State == status.PortFailed, p.State == status.PortRefused:
			err := fmt.Errorf("%s is not forwarded and will be retried: %s", p.Address(), p.Error)
			errs = append(errs, errdefs.WithHint(err, joinNonEmpty("\n", p.Hint, a.command("ports remove "+forward))))
		case a.output != "json":
			a.printf("%s forwarded to port %d of the node\n", p.Address(), p.NodePort)
		}
	}
	if len(errs) > 0 && a.output == "json" {
		return exitCode(errdefs.ExitOther) // the JSON object has the details
	}
	return errors.Join(errs...)
}

func listPorts(ctx context.Context, a *app, n portNode) error {
	s, err := n.Status(ctx)
	if err != nil {
		return err
	}
	if s.State == status.NodeStopped || s.State == status.NodeFailed && len(s.Components) == 0 {
		return a.hintNotRunning(errdefs.NotRunning("no ports are forwarded"))
	}
	a.show(append([]status.Port{}, s.Ports...), renderPorts(s.Ports, a.now())) // an empty list, not null
	return nil
}

// watchPorts writes the list, and then each changed forward.
func watchPorts(ctx context.Context, a *app, n portNode) error {
	enc := json.NewEncoder(a.out)
	enc.SetEscapeHTML(false)
	shown := map[string]status.Port{}
	return n.WatchStatus(ctx, func(s *status.Status) error {
		var changed []status.Port
		now := map[string]status.Port{}
		for _, p := range s.Ports {
			at := p.Address() + " " + p.Owner // several owners may request one address
			now[at] = p
			if shown[at] != p {
				changed = append(changed, p)
			}
		}
		for at, p := range shown {
			if _, there := now[at]; !there {
				p.State, p.Since, p.Reason, p.Error, p.Hint = "removed", a.now(), "", "", ""
				changed = append(changed, p)
			}
		}
		slices.SortFunc(changed, func(x, y status.Port) int {
			return cmp.Or(cmp.Compare(x.HostPort, y.HostPort), strings.Compare(x.Address(), y.Address()))
		})
		first := len(shown) == 0 && a.output != "json"
		shown = now
		if a.output == "json" {
			for _, p := range changed {
				if err := enc.Encode(p); err != nil {
					return err
				}
			}
			return nil
		}
		if first && len(changed) > 0 {
			a.printf("%s", renderPorts(changed, a.now()))
			return nil
		}
		for _, p := range changed {
			a.printf("%s\n", strings.TrimRight(strings.Join(portRow(p, a.now()), "   "), " "))
		}
		return nil
	})
}

// renderPorts returns the list as text.
func renderPorts(ports []status.Port, now time.Time) string {
	rows := [][]string{{"HOST ADDRESS", "PORT", "PROTOCOL", "NODE PORT", "SERVES", "STATE", "SINCE", "ERROR"}}
	var hints strings.Builder
	for _, p := range ports {
		rows = append(rows, portRow(p, now))
		if p.Hint != "" {
			hints.WriteString(block("hint for "+p.Address()+":", strings.Split(p.Hint, "\n")))
		}
	}
	return table(rows) + "\n" + countText(status.CountPorts(ports)) + "\n" + hints.String()
}

func portRow(p status.Port, now time.Time) []string {
	since := ""
	if !p.Since.IsZero() {
		since = age(now.Sub(p.Since))
	}
	text := oneLine(p.Error)
	if text == "" && p.State == status.PortWaiting {
		text = "no ready endpoint"
	}
	return []string{p.HostIP, strconv.Itoa(p.HostPort), p.Proto, strconv.Itoa(p.NodePort), p.Owner, p.State, since, text}
}

// countText returns the number of forwards in each state as text.
func countText(n status.PortCounts) string {
	var parts []string
	for _, c := range []struct {
		n     int
		state string
	}{{n.Forwarded, "forwarded"}, {n.Waiting, "waiting for an endpoint"}, {n.Pending, "pending"}, {n.Failed, "failed"}, {n.Refused, "refused"}} {
		if c.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", c.n, c.state))
		}
	}
	if len(parts) == 0 {
		return "no ports"
	}
	return strings.Join(parts, ", ")
}
