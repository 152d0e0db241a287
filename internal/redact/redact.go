// Package redact removes secrets from text that leaves the machine, such as a bug report.
//
// It works in two ways. Known secrets are removed wherever they occur, also if they are encoded. Unknown secrets are recognized by their
// form (private keys, tokens, passwords in URLs) or by the name in front of them (password=…). Text that contains encoded text is decoded
// for this. Recognition prefers to remove too much.
//
// Runs in: any process.
package redact

import (
	"slices"
	"strings"
)

// Mark replaces a secret.
const Mark = "[REDACTED]"

// Redactor removes secrets from text. Its methods may be called concurrently.
type Redactor struct{ known *strings.Replacer }

// New returns a redactor that knows the given secrets. Secrets that are too short to be distinguished from other text are ignored.
func New(secrets ...string) *Redactor {
	var forms []string
	for _, s := range secrets {
		if s = strings.TrimSpace(s); len(s) >= minSecret {
			forms = append(forms, encodings(s)...)
		}
	}
	slices.SortFunc(forms, func(a, b string) int { return len(b) - len(a) }) // the replacer takes the first one that matches
	forms = slices.Compact(forms)
	pairs := make([]string, 0, 2*len(forms))
	for _, f := range forms {
		pairs = append(pairs, f, Mark)
	}
	return &Redactor{known: strings.NewReplacer(pairs...)}
}

// minSecret is the minimum length of a known secret in bytes.
const minSecret = 6

// Text returns text without secrets.
func (r *Redactor) Text(text string) string { return r.recognized(r.known.Replace(text), maxDepth) }

// maxDepth is the maximum number of nested encodings that are decoded.
const maxDepth = 2

// recognized removes secrets that are recognized by their form, also in encoded text.
func (r *Redactor) recognized(text string, depth int) string {
	for _, p := range patterns {
		text = p.remove(text)
	}
	if depth == 0 {
		return text
	}
	for _, e := range encoded {
		text = e.find.ReplaceAllStringFunc(text, func(word string) string {
			plain, ok := e.decode(word)
			if ok && r.recognized(r.known.Replace(plain), depth-1) != plain {
				return Mark
			}
			return word
		})
	}
	return text
}
