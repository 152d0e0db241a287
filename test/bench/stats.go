package main

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
)

// summary summarizes a list of samples.
type summary struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	N      int     `json:"n"`
}

func summarize(samples []float64) summary {
	if len(samples) == 0 {
		return summary{}
	}
	s := slices.Sorted(slices.Values(samples))
	m := s[len(s)/2]
	if len(s)%2 == 0 {
		m = (s[len(s)/2-1] + m) / 2
	}
	return summary{Median: m, Min: s[0], Max: s[len(s)-1], N: len(s)}
}

// ratios divides the samples pair by pair, so that a load that slowed both samples of a pair cancels out.
func ratios(a, b []float64) []float64 {
	out := make([]float64, 0, len(a))
	for i := range min(len(a), len(b)) {
		out = append(out, a[i]/b[i])
	}
	return out
}

// row is one row of the table.
type row struct {
	what, own, peer, ratio, target string
}

// compared returns a row for two lists of samples in seconds, printed in unit ("s" or "ms").
func compared(what string, own, peer []float64, unit string, target float64) row {
	r := summarize(ratios(own, peer))
	out := row{what: what, own: show(summarize(own), unit), peer: show(summarize(peer), unit),
		ratio: fmt.Sprintf("%.2f  (%.2f–%.2f, %d pairs)", r.Median, r.Min, r.Max, r.N)}
	if target > 0 {
		out.target = targetCell(r.Median, target, fmt.Sprintf("≤ %.2f", target))
	}
	return out
}

func targetCell(got, target float64, text string) string {
	if got <= target {
		return text + "  reached"
	}
	return text + "  missed"
}

func show(s summary, unit string) string {
	scale := 1.0
	if unit == "ms" {
		scale = 1000
	}
	return fmt.Sprintf("%.2f %s  (%.2f–%.2f)", s.Median*scale, unit, s.Min*scale, s.Max*scale)
}

func table(rows []row) string {
	var out strings.Builder
	w := tabwriter.NewWriter(&out, 0, 0, 3, ' ', 0)
	line := func(r row) {
		_, _ = fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", r.what, r.own, r.peer, r.ratio, r.target)
	}
	line(row{"median (min–max)", "rootlessnode", "without it", "ratio", "target"})
	for _, r := range rows {
		line(r)
	}
	_ = w.Flush() // into memory
	var trimmed strings.Builder
	for l := range strings.Lines(out.String()) {
		trimmed.WriteString(strings.TrimRight(l, " \n") + "\n")
	}
	return trimmed.String()
}
