// Package dispatch selects the program of a multi-call binary. It does not import
// the programs, so that its test does not have to link them. It matches only exact
// names.
package dispatch

import (
	"path/filepath"
	"slices"
)

// Choose returns the name in names that matches args[0], the name by which the
// binary was called, or else args[1]. rest is the argument list for the program,
// whose first element is the matching argument. ok is false if none matches.
func Choose(args, names []string) (name string, rest []string, ok bool) {
	for skip := 0; skip < 2 && skip < len(args); skip++ {
		if name := filepath.Base(args[skip]); slices.Contains(names, name) {
			return name, args[skip:], true
		}
	}
	return "", nil, false
}
