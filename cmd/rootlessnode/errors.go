package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// printError is the only place that prints errors. They go to standard error, as JSON where the command was asked for it.
func (a *app) printError(err error) {
	r := errdefs.ReportOf(err)
	if a.output == "json" {
		a.printJSON(a.err, struct {
			Error *errdefs.Report `json:"error"`
		}{r})
		return
	}
	_, _ = io.WriteString(a.err, harmless(renderError(r)))
}

// harmless replaces control characters but tab and newline: text may come from another host or account, such as a message of
// an API server, and a terminal would take it for commands.
func harmless(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && unicode.IsControl(r) {
			return '?'
		}
		return r
	}, text)
}

// renderError writes one "error:" line a fault, "hint:" with what can be pasted, and "log:" with the last lines.
func renderError(r *errdefs.Report) string {
	var b strings.Builder
	for line := range strings.Lines(r.Message) {
		if line = strings.TrimRight(line, "\n"); line != "" {
			fmt.Fprintf(&b, "error: %s\n", line)
		}
	}
	for _, h := range r.Hints {
		b.WriteString(block("hint:", strings.Split(strings.TrimRight(h, "\n"), "\n")))
	}
	switch {
	case r.LogPath != "":
		b.WriteString(block("log: "+r.LogPath, r.LogTail))
	case len(r.LogTail) > 0:
		b.WriteString(block("log of "+r.Component+":", r.LogTail))
	}
	return b.String()
}

// block writes a heading with one line beside it, if it is a heading of one line, and else the lines below it.
func block(head string, lines []string) string {
	if len(lines) == 1 && strings.HasSuffix(head, ":") {
		return head + " " + lines[0] + "\n"
	}
	var b strings.Builder
	b.WriteString(head + "\n")
	for _, l := range lines {
		b.WriteString(strings.TrimRight("  "+l, " ") + "\n")
	}
	return b.String()
}

// printJSON writes v indented. A reader that went away is not ours to report.
func (a *app) printJSON(w io.Writer, v any) {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v)
}

func (a *app) printf(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format, args...) }
