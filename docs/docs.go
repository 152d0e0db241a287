// Package docs contains the pages of the documentation, which tests compare with a running node and try on it.
package docs

import "embed"

// Pages are the files of this directory.
//
//go:embed *.md
var Pages embed.FS

// Page returns the text of a page, such as security.md.
func Page(name string) (string, error) {
	text, err := Pages.ReadFile(name)
	return string(text), err
}
