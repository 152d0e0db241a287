package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/node"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

type statusNode interface {
	Status(ctx context.Context) (*status.Status, error)
}

var _ statusNode = (*node.Node)(nil)

func newStatus(a *app) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the current state of the node",
		Long: `Show the current state of the node, running or not: its state and the reason for it,
its components, its conditions and the forwarded ports. The exit code is 0 whenever the
state can be determined. Steps of the node itself are listed if they are not finished,
or with --all.`,
		RunE: withNode(a, func(ctx context.Context, n statusNode, _ []string) error {
			s, err := n.Status(ctx)
			if err == nil {
				s.Render(a.commandOf)
				a.show(s, renderStatus(a, *s, all))
			}
			return err
		}),
	}
	cmd.Flags().BoolVar(&all, "all", false, "also list finished steps of the node")
	return a.withOutput(cmd)
}

// renderStatus returns the status as text. all is the flag.
func renderStatus(a *app, s status.Status, all bool) string {
	var b strings.Builder
	now, st := a.now(), a.styleOf(a.stdout)
	head := [][]string{}
	add := func(name string, parts ...string) {
		if text := joinNonEmpty("   ", parts...); text != "" {
			head = append(head, []string{name, text})
		}
	}
	state := st.nodeState(s.State)
	if !s.Since.IsZero() {
		state += " for " + age(now.Sub(s.Since))
	}
	add("node", s.Name, state)
	add("reason", oneLine(s.Reason))
	add("node object", s.NodeName, prefixed("Kubernetes ", s.Kubernetes), prefixed("rootlessnode ", s.Version))
	if t, ok := s.Timings[status.NodeReadyTiming]; ok {
		add("started", age(now.Sub(s.StartedAt))+" ago", fmt.Sprintf("ready after %.1fs", t))
	}
	if !s.EndsAt.IsZero() {
		add("ends", "in "+age(s.EndsAt.Sub(now)), "(up --ttl)")
	}
	add("api server", s.APIServer)
	add("kubeconfig", s.Kubeconfig)
	add("data", s.DataDir)
	add("network", s.Network.Driver, joinNonEmpty(" ", s.Network.Interface, s.Network.Address), prefixedInt("mtu ", s.Network.MTU),
		prefixed("port driver ", s.Network.PortDriver))
	if len(s.Ports) > 0 {
		add("ports", countText(status.CountPorts(s.Ports)))
	}
	if r := s.Restored; r != nil && !r.Done {
		add("pods", fmt.Sprintf("%d of the last run", r.Pods), prefixed("waiting for ", strings.Join(r.Waiting, ", ")))
	}
	add("cgroup", s.Cgroup.Path)
	add("controllers", strings.Join(s.Cgroup.Controllers, " "), prefixed("not enforced: ", strings.Join(s.Cgroup.Unenforced, " ")))
	add("limits", limitsText(s.Cgroup.Ceiling))
	add("settings", prefixed("not enforced: ", strings.Join(s.Cgroup.UnenforcedSettings, " ")))
	if m := s.Mounts; m != nil {
		add("mounts", mountsText(m))
	}
	b.WriteString(table(head))
	section(&b, componentRows(s, now, st, all))
	section(&b, conditionRows(s))
	ports, hidden := shownPorts(s.Ports)
	section(&b, portRows(ports))
	if hidden > 0 {
		fmt.Fprintf(&b, "%d more ports are forwarded or waiting; to list them: %s\n", hidden, a.command("ports"))
	}
	for _, p := range ports {
		if p.Hint != "" {
			b.WriteString(block("hint for "+p.Address()+":", strings.Split(p.Hint, "\n")))
		}
	}
	for _, c := range s.Conditions {
		if c.Hint != "" {
			b.WriteString(block("hint for "+c.Type+":", strings.Split(c.Hint, "\n")))
		}
	}
	if m := s.Mounts; m != nil && m.Hint != "" {
		b.WriteString(block("hint for mounts:", strings.Split(m.Hint, "\n")))
	}
	if len(s.Warnings) > 0 {
		b.WriteString("\n")
	}
	for _, w := range s.Warnings {
		b.WriteString("warning: " + w + "\n")
	}
	if s.Failure != nil {
		b.WriteString("\n" + renderHints(s.Failure.Hints) + renderLog(s.Failure))
	}
	return b.String()
}

// mountsText describes the mount guarantees. Reasons begin with the number of their guarantee ("1: ").
func mountsText(m *status.Mounts) string {
	var parts []string
	for i, g := range []struct {
		name  string
		holds bool
	}{{"host to node", m.HostToNode}, {"shared inside", m.Shared}, {"node to host", m.NodeToHost}} {
		text := g.name + ": no"
		if g.holds {
			text = g.name + ": yes"
		}
		for _, r := range m.Reasons {
			if reason, ok := strings.CutPrefix(r, strconv.Itoa(i+1)+": "); ok {
				text += " (" + reason + ")"
			}
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}

// limitsText returns the limits as text.
func limitsText(l layout.Limits) string {
	var parts []string
	if l.CPUMilli > 0 {
		parts = append(parts, strconv.FormatFloat(float64(l.CPUMilli)/1000, 'f', -1, 64)+" CPUs")
	}
	if l.MemoryBytes > 0 {
		parts = append(parts, bytesText(uint64(l.MemoryBytes)))
	}
	if l.Pids > 0 {
		parts = append(parts, strconv.FormatInt(l.Pids, 10)+" tasks")
	}
	return strings.Join(parts, ", ")
}

// bytesText returns n bytes as text, in the largest binary unit in which the value is at least 1.
func bytesText(n uint64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	v, i := float64(n), 0
	for v >= 1024 && i < len(units)-1 {
		v, i = v/1024, i+1
	}
	if i == 0 || v == float64(int64(v)) {
		return strconv.FormatFloat(v, 'f', 0, 64) + " " + units[i]
	}
	return strconv.FormatFloat(v, 'f', 1, 64) + " " + units[i]
}

// section writes a blank line and the table, if it has rows below its heading.
func section(b *strings.Builder, rows [][]string) {
	if len(rows) > 1 {
		b.WriteString("\n" + table(rows))
	}
}

// componentRows returns the table of the components. Steps of the node that are up are left out unless all is set.
func componentRows(s status.Status, now time.Time, st style, all bool) [][]string {
	rows := [][]string{{"COMPONENT", "STATE", "SINCE", "RESTARTS", "PID", "REASON"}}
	for _, c := range s.Components {
		if up := c.State == status.Ready || c.State == status.Done; up && !c.IsProgram() && !all {
			continue
		}
		// No colours: table would count the escape sequences as columns.
		rows = append(rows, []string{
			c.Name, string(c.State), age(now.Sub(c.Since)), strconv.Itoa(c.Restarts), prefixedInt("", c.PID),
			st.truncate(componentReason(c), max(st.width-reasonAt, reasonAt)),
		})
	}
	return rows
}

func conditionRows(s status.Status) [][]string {
	rows := [][]string{{"CONDITION", "STATUS", "REASON", "MESSAGE"}}
	for _, c := range s.Conditions {
		rows = append(rows, []string{c.Type, conditionStatus(c), c.Reason, oneLine(c.Message)})
	}
	return rows
}

// conditionStatus returns the status of a condition in the words of kubectl.
func conditionStatus(c status.Condition) string {
	switch {
	case c.OK && c.Warning:
		return "Warning"
	case c.OK:
		return "True"
	case c.Pending:
		return "Unknown"
	}
	return "False"
}

// maxListedPorts is the number of forwards up to which the status lists all of them.
const maxListedPorts = 20

// shownPorts returns the forwards to list: all, or if there are many only those that are neither forwarded nor waiting.
func shownPorts(all []status.Port) (shown []status.Port, hidden int) {
	if len(all) <= maxListedPorts {
		return all, 0
	}
	for _, p := range all {
		if p.State != status.PortForwarded && p.State != status.PortWaiting {
			shown = append(shown, p)
		}
	}
	return shown, len(all) - len(shown)
}

func portRows(ports []status.Port) [][]string {
	rows := [][]string{{"HOST PORT", "NODE PORT", "OWNER", "STATE", "REASON"}}
	for _, p := range ports {
		rows = append(rows, []string{p.Address(), strconv.Itoa(p.NodePort), p.Owner, p.State, oneLine(p.Error)})
	}
	return rows
}

func joinNonEmpty(sep string, parts ...string) string {
	var out []string
	for _, p := range parts {
		if p != "" {
			out = append(out, p)
		}
	}
	return strings.Join(out, sep)
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

func prefixedInt(prefix string, n int) string {
	if n == 0 {
		return ""
	}
	return prefix + strconv.Itoa(n)
}
