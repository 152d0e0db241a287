package main

import (
	"fmt"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/term"

	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// style describes the capabilities of the output.
type style struct {
	colour  bool
	unicode bool
	width   int // columns; 0: no limit
}

// styleOf returns the style for output to f; the zero style if f is not a terminal.
func (a *app) styleOf(f *os.File) style {
	if !isTerminal(f) {
		return style{}
	}
	s := style{colour: a.env("NO_COLOR") == "" && a.env("TERM") != "dumb"}
	for _, k := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := a.env(k); v != "" {
			s.unicode = strings.Contains(strings.ToUpper(v), "UTF-8") || strings.Contains(strings.ToUpper(v), "UTF8")
			break
		}
	}
	if w, _, err := term.GetSize(int(f.Fd())); err == nil {
		s.width = w
	}
	return s
}

// Colours of states (ECMA-48 SGR).
const (
	red    = "31"
	green  = "32"
	yellow = "33"
	grey   = "90"
)

func (s style) paint(colour, text string) string {
	if !s.colour || colour == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// truncate shortens text to n columns if the width is limited. It assumes one column per rune.
func (s style) truncate(text string, n int) string {
	if s.width == 0 || utf8.RuneCountInString(text) <= n {
		return text
	}
	if n <= 0 {
		return ""
	}
	r := []rune(text)
	if s.unicode {
		return string(r[:n-1]) + "…"
	}
	return string(r[:n])
}

func (s style) mark(state status.ComponentState) string {
	type mark struct{ unicode, ascii, colour string }
	m := mark{"○", ".", grey}
	switch state {
	case status.Ready, status.Done:
		m = mark{"✓", "+", green}
	case status.Starting, status.Running:
		m = mark{"●", "*", yellow}
	case status.Backoff, status.Failed:
		m = mark{"✗", "x", red}
	}
	if s.unicode {
		return s.paint(m.colour, m.unicode)
	}
	return s.paint(m.colour, m.ascii)
}

func (s style) nodeState(state status.State) string {
	colour := yellow
	switch state {
	case status.NodeReady:
		colour = green
	case status.NodeFailed:
		colour = red
	case status.NodeStopped:
		colour = grey
	}
	return s.paint(colour, string(state))
}

// seconds returns a short duration as seconds with one decimal.
func seconds(d time.Duration) string { return fmt.Sprintf("%.1fs", d.Seconds()) }

// age returns a long duration in its two largest units.
func age(d time.Duration) string {
	const day = 24 * time.Hour
	d = max(d, 0).Truncate(time.Second)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", d/time.Minute, d%time.Minute/time.Second)
	case d < day:
		return fmt.Sprintf("%dh%dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return fmt.Sprintf("%dd%dh", d/day, d%day/time.Hour)
}

// table returns rows in aligned columns, without trailing blanks.
func table(rows [][]string) string {
	var widths []int
	for _, r := range rows {
		for i, c := range r {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(c))
		}
	}
	var b strings.Builder
	for _, r := range rows {
		var line strings.Builder
		for i, c := range r {
			line.WriteString(c)
			if i < len(r)-1 {
				line.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(c)+columnGap))
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}

const columnGap = 3
