// Package dispatch decides which program of a multi-call binary is wanted. It
// knows none of the programs and is kept apart from them, so that its test does
// not have to link them. It refuses to guess from anything but exact names.
package dispatch

import (
	"path/filepath"
	"slices"
)

// Choose returns the one of names that args, a whole argument list, asks for: by
// the name that the binary was called by or else by the first argument. The list
// it returns is the one that the program is to see; its first element is the
// program's name, or the path that it was called by.
func Choose(args, names []string) (name string, rest []string, ok bool) {
	for skip := 0; skip < 2 && skip < len(args); skip++ {
		if name := filepath.Base(args[skip]); slices.Contains(names, name) {
			return name, args[skip:], true
		}
	}
	return "", nil, false
}
