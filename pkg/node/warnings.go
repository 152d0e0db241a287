package node

import (
	"slices"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/datadir"
	"github.com/rootlessnode/rootlessnode/internal/preflight"
)

// hostWarning begins the warnings of the checks of the host in the record. The others are those of the running node.
const hostWarning = "host "

// logWarnings logs the warnings among the findings, without those that the last start logged if Options.HiddenWarnings is set.
func logWarnings(n *Node, findings []preflight.Finding) {
	var known []string
	if r := record(n.Config().Name, n.data.Dir); r != nil && n.hidden != nil {
		known = r.Warnings
	}
	hidden := 0
	n.warned = nil
	for _, f := range findings {
		if f.Level != preflight.LevelWarn {
			continue
		}
		text := hostWarning + f.Code + " " + f.Message
		n.warned = append(n.warned, text)
		if slices.Contains(known, text) {
			hidden++
			continue
		}
		n.log.WithField("check", f.Code).Warn(f.Message)
	}
	if hidden > 0 {
		n.hidden(hidden)
	}
}

// recordWarnings keeps the logged warnings with the data, for the next start.
func recordWarnings(n *Node) error {
	return replaceWarnings(n, n.warned, func(text string) bool { return strings.HasPrefix(text, hostWarning) })
}

// NewWarnings returns the warnings among those of a running node (status.Status.Warnings) that were not passed to this function at the
// last start, and keeps all of them with the data.
func NewWarnings(n *Node, warnings []string) ([]string, error) {
	r := record(n.Config().Name, n.data.Dir)
	if r == nil {
		return warnings, nil
	}
	fresh := slices.DeleteFunc(slices.Clone(warnings), func(text string) bool { return slices.Contains(r.Warnings, text) })
	return fresh, replaceWarnings(n, warnings, func(text string) bool { return !strings.HasPrefix(text, hostWarning) })
}

// replaceWarnings replaces the recorded warnings for which replaced returns true.
func replaceWarnings(n *Node, with []string, replaced func(string) bool) error {
	r := record(n.Config().Name, n.data.Dir)
	if r == nil {
		return nil
	}
	all := slices.Concat(slices.DeleteFunc(slices.Clone(r.Warnings), replaced), with)
	return datadir.PutWarnings(n.data, all)
}
