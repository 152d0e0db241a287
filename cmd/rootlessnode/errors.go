package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// printError prints err to standard error, as JSON if -o json was given. It is the only function that prints errors.
func (a *app) printError(err error) {
	r := a.reportOf(err)
	if a.output == "json" {
		a.printJSON(a.err, struct {
			Error *errdefs.Report `json:"error"`
		}{r})
		return
	}
	_, _ = io.WriteString(a.err, sanitize(renderError(r)))
}

// sanitize replaces control characters except tab and newline, because text may come from another host or account, such as a
// message of an API server, and a terminal would interpret it.
func sanitize(text string) string {
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && unicode.IsControl(r) {
			return '?'
		}
		return r
	}, text)
}

// renderError returns one "error:" line per error, "hint:" with commands to paste, and "log:" with the last lines of the log.
func renderError(r *errdefs.Report) string {
	var b strings.Builder
	for line := range strings.Lines(r.Message) {
		if line = strings.TrimRight(line, "\n"); line != "" {
			fmt.Fprintf(&b, "error: %s\n", line)
		}
	}
	return b.String() + renderHints(r.Hints) + renderLog(r)
}

// renderLog returns the log excerpt of the component that failed, or "".
func renderLog(r *errdefs.Report) string {
	switch {
	case r.LogPath != "":
		return block("log: "+r.LogPath, r.LogTail)
	case len(r.LogTail) > 0:
		return block("log of "+r.Component+":", r.LogTail)
	}
	return ""
}

// renderHints returns "hint:" with commands to paste for each hint.
func renderHints(hints []string) string {
	var b strings.Builder
	for _, h := range hints {
		b.WriteString(block("hint:", strings.Split(strings.TrimRight(h, "\n"), "\n")))
	}
	return b.String()
}

// block returns the heading with the lines below it, or next to it if there is only one and the heading ends in a colon.
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

// printJSON writes v as indented JSON. Write errors are ignored, because the reader has gone away.
func (a *app) printJSON(w io.Writer, v any) {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	_ = enc.Encode(v)
}

// show prints v as JSON with -o json, and the text otherwise.
func (a *app) show(v any, text string) {
	if a.output == "json" {
		a.printJSON(a.out, v)
		return
	}
	_, _ = io.WriteString(a.out, text)
}

func (a *app) printf(format string, args ...any) { _, _ = fmt.Fprintf(a.out, format, args...) }
