package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// renderTop returns the lines of the table.
func renderTop(p topSnapshot, st style) []string {
	rows := [][]string{{"NAME", "CPU", "MEMORY", "WORKING SET", "READ/S", "WRITE/S", "TASKS"}}
	add := func(name string, r topRow) {
		mark := func(text, resource string) string {
			if text != "" && slices.Contains(r.FromProc, resource) {
				return "~" + text
			}
			return text
		}
		rows = append(rows, []string{
			name, mark(cpuText(r.CPU), "cpu"), mark(optional(r.MemoryBytes, bytesText), "memory"),
			mark(optional(r.WorkingSetBytes, bytesText), "memory"), rateText(r.ReadPerSecond), rateText(r.WritePerSecond),
			mark(optional(r.Pids, func(n uint64) string { return strconv.FormatUint(n, 10) }), "pids"),
		})
	}
	add("node", p.Node)
	for _, r := range p.Components {
		add("  "+r.Name, r)
	}
	if len(p.Pods) > 0 {
		rows = append(rows, []string{"pods"})
	}
	for _, r := range p.Pods {
		add("  "+podText(r), r)
	}
	var lines []string
	if text := limitsText(p.Ceiling); text != "" {
		lines = append(lines, "limits of the node: "+text)
	}
	for line := range strings.Lines(table(rows)) {
		lines = append(lines, strings.TrimSuffix(line, "\n"))
	}
	if len(p.Node.FromProc) > 0 {
		lines = append(lines, "~ sum over the processes, because of missing cgroup controllers: "+strings.Join(p.Node.FromProc, " "))
	}
	for i := range lines {
		lines[i] = st.truncate(lines[i], st.width)
	}
	return lines
}

func podText(r topRow) string {
	switch {
	case r.Name != "":
		return r.Namespace + "/" + r.Name
	case r.UID != "":
		return "uid " + r.UID
	}
	return "container " + shortID(strings.Join(r.containers, " "))
}

func shortID(id string) string {
	const shown = 12
	return id[:min(len(id), shown)]
}

func cpuText(v *float64) string {
	if v == nil {
		return ""
	}
	return strconv.FormatFloat(*v, 'f', 3, 64)
}

func optional(n *uint64, text func(uint64) string) string {
	if n == nil {
		return ""
	}
	return text(*n)
}

func rateText(v *float64) string {
	if v == nil {
		return ""
	}
	return bytesText(uint64(*v))
}

// topLive redraws the table until q is pressed, ctx ends or the node ends.
func topLive(ctx context.Context, a *app, r *topReader, interval time.Duration) error {
	keys := openKeys(a.stdin)
	defer keys.close()
	for drawn, wait := 0, min(firstInterval, interval); ; wait = interval {
		if quit, err := keys.wait(ctx, wait); quit || err != nil {
			return err
		}
		p, err := r.measure(ctx)
		if err != nil {
			return err
		}
		lines := fitHeight(renderTop(p, a.styleOf(a.stdout)), terminalHeight(a.stdout))
		drawOver(a.out, drawn, lines)
		drawn = len(lines)
	}
}

// drawOver replaces the last drawn lines of a terminal with lines (ECMA-48: CUU, EL, ED).
func drawOver(w io.Writer, drawn int, lines []string) {
	var b strings.Builder
	if drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", drawn)
	}
	for _, l := range lines {
		b.WriteString("\r\x1b[2K" + l + "\n")
	}
	b.WriteString("\x1b[J")
	_, _ = io.WriteString(w, b.String())
}

// fitHeight leaves out lines that do not fit on a terminal of that height, because lines that scrolled away cannot be redrawn.
func fitHeight(lines []string, height int) []string {
	if height <= 2 || len(lines) < height {
		return lines
	}
	kept := height - 2 // one line for the number of omitted lines, one for the cursor
	return append(slices.Clone(lines[:kept]), fmt.Sprintf("%d more lines", len(lines)-kept))
}
