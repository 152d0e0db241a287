// Package docs contains pages of the documentation that tests compare with a running node.
package docs

import _ "embed" // the pages

// Security is security.md.
//
//go:embed security.md
var Security string
