package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// redraw is the interval at which the live view is redrawn.
const redraw = 100 * time.Millisecond

// progress shows what `up` waits for: a live view on a terminal, otherwise one line per change.
type progress struct {
	w     io.Writer
	now   func() time.Time
	style style
	live  bool

	updates chan status.Status
	done    sync.WaitGroup
}

func newProgress(a *app) *progress {
	p := &progress{w: a.err, now: a.now, style: a.styleOf(a.stderr), updates: make(chan status.Status)}
	p.live = p.style.colour && p.style.width > 0
	p.done.Go(p.show)
	return p
}

func (p *progress) update(s status.Status) { p.updates <- s }

// close shows the last status and ends the view.
func (p *progress) close() {
	close(p.updates)
	p.done.Wait()
}

func (p *progress) show() {
	if !p.live {
		p.showLines()
		return
	}
	tick := time.NewTicker(redraw)
	defer tick.Stop()
	var last *status.Status
	drawn := 0
	for {
		select {
		case s, ok := <-p.updates:
			if !ok {
				if last != nil {
					p.draw(&drawn, *last)
				}
				return
			}
			last = &s
		case <-tick.C:
		}
		if last != nil {
			p.draw(&drawn, *last)
		}
	}
}

func (p *progress) showLines() {
	var last status.Status
	for s := range p.updates {
		for _, l := range progressLines(last, s) {
			_, _ = fmt.Fprintln(p.w, l)
		}
		last = s
	}
}

// draw replaces the lines drawn before with the view of s.
func (p *progress) draw(drawn *int, s status.Status) {
	lines := progressView(s, p.now(), p.style)
	drawOver(p.w, *drawn, lines)
	*drawn = len(lines)
}

const (
	nameColumn  = 24
	stateColumn = 9
	timeColumn  = 7
	// reasonAt is the column at which reasons begin, after the mark, the blanks and the other columns.
	reasonAt = 2 + 2 + nameColumn + 1 + stateColumn + 1 + timeColumn + 2
)

// progressView returns the live view: one line per component, with the reason for its state.
func progressView(s status.Status, now time.Time, st style) []string {
	var out []string
	for _, c := range s.Components {
		reason := componentReason(c)
		clock := ""
		if c.State != status.Waiting {
			clock = seconds(componentClock(s, c, now))
		}
		line := fmt.Sprintf("  %s %-*s %-*s %*s  %s", st.mark(c.State), nameColumn, c.Name, stateColumn, c.State, timeColumn, clock,
			st.paint(grey, st.truncate(reason, st.width-reasonAt)))
		out = append(out, strings.TrimRight(line, " "))
	}
	if r := nodeWait(s); r != "" {
		out = append(out, st.truncate("  "+r, st.width))
	}
	return out
}

// componentClock returns the time from the node's start until the component was ready or, if it is not ready, the time since
// its last change of state.
func componentClock(s status.Status, c status.Component, now time.Time) time.Duration {
	if t, ok := s.Timings[c.Name]; ok && (c.State == status.Ready || c.State == status.Done) {
		return time.Duration(t * float64(time.Second))
	}
	return max(now.Sub(c.Since), 0)
}

func componentReason(c status.Component) string {
	if c.State == status.Waiting && len(c.WaitingFor) > 0 {
		return "for " + strings.Join(c.WaitingFor, ", ")
	}
	return oneLine(c.Reason)
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// nodeWait returns the reason why the node is not Ready although all components are, or the pods that are waited for, or "".
func nodeWait(s status.Status) string {
	if r := s.Restored; s.State != status.NodeStarting && r != nil && !r.Done {
		return r.Text()
	}
	if s.State != status.NodeStarting {
		return ""
	}
	for _, c := range s.Components {
		if c.State != status.Ready && c.State != status.Done {
			return ""
		}
	}
	return oneLine(s.Reason)
}

// progressLines returns the plain view: one line per change between two statuses.
func progressLines(old, cur status.Status) []string {
	var out []string
	line := func(at time.Time, name, state, reason string) {
		l := fmt.Sprintf("%*s  %-*s %-*s %s", timeColumn, seconds(max(at.Sub(cur.StartedAt), 0)), nameColumn, name, stateColumn, state, reason)
		out = append(out, strings.TrimRight(l, " "))
	}
	for _, c := range cur.Components {
		o := old.Component(c.Name)
		if o != nil && o.State == c.State || o == nil && c.State == status.Waiting {
			continue
		}
		line(c.Since, c.Name, string(c.State), componentReason(c))
	}
	began := old.State == "" && cur.State == status.NodeStarting // the start itself is not shown
	if old.State != cur.State && !began || nodeWait(cur) != "" && nodeWait(old) != nodeWait(cur) {
		reason := nodeWait(cur)
		if reason == "" && cur.State != status.NodeStarting {
			reason = oneLine(cur.Reason)
		}
		line(latest(cur), "node", string(cur.State), reason)
	}
	return out
}

// latest returns the time of the latest change in s.
func latest(s status.Status) time.Time {
	t := s.Since
	for _, c := range s.Components {
		if c.Since.After(t) {
			t = c.Since
		}
	}
	return t
}

// printSummary prints the result of `up` for a node that can be used, whose context it merges into the kubeconfig of the account.
func printSummary(a *app, n starter, s status.Status) {
	rows := [][]string{{"  kubeconfig", n.Kubeconfig()}}
	if name, file := mergeAfterStart(a, n, a.userKubeconfig(n)); file != "" {
		rows = append(rows, []string{"  context", name + " in " + file})
	}
	a.printf("%s", renderSummary(s, rows, a.now(), a.command))
}

// renderSummary returns the text that a successful `up` prints at the end.
func renderSummary(s status.Status, rows [][]string, now time.Time, command func(string) string) string {
	var b strings.Builder
	took := now.Sub(s.StartedAt)
	if t, ok := s.Timings[status.NodeReadyTiming]; ok {
		took = time.Duration(t * float64(time.Second))
	}
	state := "Ready"
	if s.State == status.NodeDegraded {
		state = "running but degraded"
	}
	fmt.Fprintf(&b, "\nNode %s is %s after %s", s.NodeName, state, seconds(took))
	if s.Kubernetes != "" {
		fmt.Fprintf(&b, " (Kubernetes %s)", s.Kubernetes)
	}
	b.WriteString("\n")
	steps := []string{"kubectl get pods -A", "shell", "down"}
	if s.State != status.NodeReady {
		fmt.Fprintf(&b, "  %s\n", oneLine(s.Reason))
		steps = append([]string{"status"}, steps...)
	}
	for _, c := range s.Conditions {
		if c.OK && c.Warning {
			fmt.Fprintf(&b, "  warning: %s: %s\n", c.Type, oneLine(c.Message))
		}
	}
	for _, w := range s.Warnings {
		fmt.Fprintf(&b, "  warning: %s\n", w)
	}
	if s.APIServer != "" {
		rows = append(rows, []string{"  API server", s.APIServer})
	}
	b.WriteString("\n" + table(rows) + "\nNext steps:\n")
	for _, c := range steps {
		b.WriteString("  " + command(c) + "\n")
	}
	return b.String()
}
