package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// redraw is how often the clocks of the live view move on.
const redraw = 100 * time.Millisecond

// progress shows what an `up` waits for: on a terminal a view that is drawn over itself, elsewhere a line a change.
type progress struct {
	w     io.Writer
	now   func() time.Time
	style style
	live  bool

	updates chan status.Status
	done    sync.WaitGroup
}

func (a *app) newProgress() *progress {
	p := &progress{w: a.err, now: a.now, style: a.styleOf(a.stderr), updates: make(chan status.Status)}
	p.live = p.style.colour && p.style.width > 0
	p.done.Go(p.show)
	return p
}

func (p *progress) update(s status.Status) { p.updates <- s }

// close shows the last picture and ends the view.
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

// draw replaces the lines drawn before.
func (p *progress) draw(drawn *int, s status.Status) {
	lines := progressView(s, p.now(), p.style)
	drawOver(p.w, *drawn, lines)
	*drawn = len(lines)
}

const (
	nameColumn  = 24
	stateColumn = 9
	timeColumn  = 7
	// reasonAt is the column at which reasons begin: mark, blanks and the columns before.
	reasonAt = 2 + 2 + nameColumn + 1 + stateColumn + 1 + timeColumn + 2
)

// progressView is the live view: a line a component, with what it waits for.
func progressView(s status.Status, now time.Time, st style) []string {
	var out []string
	for _, c := range s.Components {
		reason := componentReason(c)
		clock := ""
		if c.State != status.Waiting {
			clock = seconds(componentClock(s, c, now))
		}
		line := fmt.Sprintf("  %s %-*s %-*s %*s  %s", st.mark(c.State), nameColumn, c.Name, stateColumn, c.State, timeColumn, clock,
			st.paint(grey, st.cut(reason, st.width-reasonAt)))
		out = append(out, strings.TrimRight(line, " "))
	}
	if r := nodeWait(s); r != "" {
		out = append(out, st.cut("  "+r, st.width))
	}
	return out
}

// componentClock is how long after the node's start a component was ready, else how long it has been as it is.
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

// nodeWait is what is still missing when all components are up.
func nodeWait(s status.Status) string {
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

// progressLines is the plain view: what changed between two pictures.
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
	began := old.State == "" && cur.State == status.NodeStarting // that it starts is no news
	if old.State != cur.State && !began || nodeWait(cur) != "" && nodeWait(old) != nodeWait(cur) {
		reason := nodeWait(cur)
		if cur.State != status.NodeStarting {
			reason = oneLine(cur.Reason)
		}
		line(latest(cur), "node", string(cur.State), reason)
	}
	return out
}

// latest is when the newest change of a picture happened.
func latest(s status.Status) time.Time {
	t := s.Since
	for _, c := range s.Components {
		if c.Since.After(t) {
			t = c.Since
		}
	}
	return t
}

// renderSummary is the end of a successful `up`.
func renderSummary(s status.Status, kubeconfig string, now time.Time, command func(string) string) string {
	var b strings.Builder
	took := now.Sub(s.StartedAt)
	if t, ok := s.Timings[status.NodeReadyTiming]; ok {
		took = time.Duration(t * float64(time.Second))
	}
	state := "Ready"
	if s.State == status.NodeDegraded {
		state = "up, but degraded"
	}
	fmt.Fprintf(&b, "\nNode %s is %s after %s", s.NodeName, state, seconds(took))
	if s.Kubernetes != "" {
		fmt.Fprintf(&b, " (Kubernetes %s)", s.Kubernetes)
	}
	b.WriteString("\n")
	if s.State == status.NodeDegraded {
		fmt.Fprintf(&b, "  %s\n", oneLine(s.Reason))
	}
	for _, w := range s.Warnings {
		fmt.Fprintf(&b, "  warning: %s\n", w)
	}
	rows := [][]string{{"  kubeconfig", kubeconfig}}
	if s.APIServer != "" {
		rows = append(rows, []string{"  API server", s.APIServer})
	}
	b.WriteString("\n" + table(rows) + "\nThree things to try:\n")
	for _, c := range []string{"kubectl get pods -A", "shell", "down"} {
		b.WriteString("  " + command(c) + "\n")
	}
	return b.String()
}
