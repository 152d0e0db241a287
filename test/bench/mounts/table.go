package main

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/rootlessnode/rootlessnode/pkg/mountns"
)

// table returns a table with the medians of the pairs for each number of standing mounts and each view, and the ratio of hidden to visible.
func table(samples []sample) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	line := func(words ...any) {
		for i, word := range words {
			if i > 0 {
				_, _ = fmt.Fprint(w, "\t")
			}
			_, _ = fmt.Fprint(w, word)
		}
		_, _ = fmt.Fprintln(w)
	}
	line("standing mounts", "the host", "changes", "wakes its watcher", "which reads", "and takes", "churn itself")
	for _, standing := range numbers(samples) {
		hidden, visible := middle(samples, standing, mountns.Slave), middle(samples, standing, mountns.Shared)
		for _, m := range []struct {
			name string
			s    sample
		}{{"sees them", visible}, {"does not", hidden}} {
			line(standing, m.name, m.s.Changes, fmt.Sprint(m.s.Woken, " times"), megabytes(m.s.Bytes), fmt.Sprintf("%.1f ms", m.s.CPU*1e3), fmt.Sprintf("%.1f ms", m.s.Seconds*1e3))
		}
		line("", "ratio", "", ratio(float64(hidden.Woken), float64(visible.Woken)), ratio(float64(hidden.Bytes), float64(visible.Bytes)),
			ratio(hidden.CPU, visible.CPU), ratio(hidden.Seconds, visible.Seconds))
	}
	_ = w.Flush() // into memory
	return b.String()
}

func numbers(samples []sample) []int {
	var all []int
	for _, s := range samples {
		all = append(all, s.Standing)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// middle returns the median of each value.
func middle(samples []sample, standing int, p mountns.Propagation) sample {
	m := sample{Standing: standing, Propagation: p}
	var woken, bytes []int
	var cpu, seconds []float64
	for _, s := range samples {
		if s.Standing == standing && s.Propagation == p {
			m.Changes = s.Changes
			woken, bytes, cpu, seconds = append(woken, s.Woken), append(bytes, s.Bytes), append(cpu, s.CPU), append(seconds, s.Seconds)
		}
	}
	m.Woken, m.Bytes, m.CPU, m.Seconds = median(woken), median(bytes), median(cpu), median(seconds)
	return m
}

func median[T int | float64](values []T) (m T) {
	if len(values) == 0 {
		return m
	}
	slices.Sort(values)
	return values[len(values)/2]
}

func megabytes(n int) string { return fmt.Sprintf("%.1f MB", float64(n)/1e6) }

func ratio(a, b float64) string {
	if b == 0 {
		return "-"
	}
	return fmt.Sprintf("%.3f", a/b)
}
