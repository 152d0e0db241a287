// Package promtext writes metrics in the text format of Prometheus, version 0.0.4.
//
// Runs in: either side. Pure.
package promtext

import (
	"bytes"
	"strconv"
	"strings"
	"time"
)

// ContentType is the media type of the format.
const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// Kind is the type of a metric.
type Kind string

// Kinds of metrics.
const (
	Counter Kind = "counter"
	Gauge   Kind = "gauge"
)

// Label is a name, which must be valid, and a value, which may be any text.
type Label struct{ Name, Value string }

// Writer collects metrics. The zero value is empty.
type Writer struct {
	buf    bytes.Buffer
	metric string
	time   time.Time
}

// At sets the time of the samples that follow. The zero time omits it.
func (w *Writer) At(t time.Time) { w.time = t }

// Metric begins a metric. All its samples must follow before the next metric begins.
func (w *Writer) Metric(name string, kind Kind, help string) {
	w.metric = name
	w.line("# HELP ", name, " ", escape(help, false))
	w.line("# TYPE ", name, " ", string(kind))
}

// Sample adds a value of the metric. Each combination of labels may occur once.
func (w *Writer) Sample(value float64, labels ...Label) {
	var set string
	if len(labels) > 0 {
		pairs := make([]string, len(labels))
		for i, l := range labels {
			pairs[i] = l.Name + `="` + escape(l.Value, true) + `"`
		}
		set = "{" + strings.Join(pairs, ",") + "}"
	}
	text := w.metric + set + " " + strconv.FormatFloat(value, 'g', -1, 64)
	if !w.time.IsZero() {
		text += " " + strconv.FormatInt(w.time.UnixMilli(), 10)
	}
	w.line(text)
}

// Bytes returns the text.
func (w *Writer) Bytes() []byte { return w.buf.Bytes() }

func (w *Writer) line(parts ...string) {
	for _, p := range parts {
		w.buf.WriteString(p)
	}
	w.buf.WriteByte('\n')
}

// escape escapes backslashes, ends of lines and, in values of labels, quotes.
func escape(s string, quotes bool) string {
	s = strings.ReplaceAll(strings.ReplaceAll(s, `\`, `\\`), "\n", `\n`)
	if quotes {
		s = strings.ReplaceAll(s, `"`, `\"`)
	}
	return s
}
