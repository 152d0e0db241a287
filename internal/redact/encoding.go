package redact

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// encodings returns the forms in which a secret may occur in text: as it is, escaped for URLs and JSON, in hexadecimal digits, and as a
// part of base64 text.
func encodings(secret string) []string {
	forms := []string{secret, url.QueryEscape(secret), url.PathEscape(secret), hex.EncodeToString([]byte(secret))}
	for _, f := range forms {
		forms = append(forms, strings.ToUpper(f), lowerEscapes(f))
	}
	if quoted, err := json.Marshal(secret); err == nil {
		forms = append(forms, strings.Trim(string(quoted), `"`))
	}
	forms = append(forms, strings.ReplaceAll(secret, "\n", `\n`))
	for _, alphabet := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		forms = append(forms, base64Parts(alphabet, secret)...)
	}
	return forms
}

var escape = regexp.MustCompile(`%[0-9A-F]{2}`)

// lowerEscapes returns the form of a URL with lower case digits in escapes.
func lowerEscapes(escaped string) string {
	return escape.ReplaceAllStringFunc(escaped, strings.ToLower)
}

// base64Parts returns the text that represents secret within longer base64 text, for each of its three possible positions. Characters that
// depend on the bytes next to the secret are left out.
func base64Parts(alphabet *base64.Encoding, secret string) []string {
	var parts []string
	for before := range 3 {
		text := alphabet.EncodeToString([]byte(strings.Repeat("\x00", before) + secret))
		first := (8*before + 5) / 6 // characters with bits of the bytes before
		last := 8 * (before + len(secret)) / 6
		if last-first >= minSecret {
			parts = append(parts, text[first:last])
		}
	}
	return parts
}

// encoded are the encodings of which words are decoded to look for secrets in them.
var encoded = []struct {
	find   *regexp.Regexp
	decode func(string) (string, bool)
}{
	{regexp.MustCompile(`[A-Za-z0-9+/_-]{12,}={0,2}`), decodeBase64},
	{regexp.MustCompile(`[^\s"'<>&;]*%[0-9A-Fa-f]{2}[^\s"'<>&;]*`), decodeURL},
}

func decodeBase64(word string) (string, bool) {
	word = strings.TrimRight(word, "=")
	for _, alphabet := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		if b, err := alphabet.DecodeString(word); err == nil && printable(b) {
			return string(b), true
		}
	}
	return "", false
}

func decodeURL(word string) (string, bool) {
	plain, err := url.QueryUnescape(word)
	return plain, err == nil && plain != word
}

// printable reports whether b is text and not binary data that looks like base64.
func printable(b []byte) bool {
	return utf8.Valid(b) && strings.IndexFunc(string(b), func(c rune) bool { return !unicode.IsPrint(c) && !unicode.IsSpace(c) }) < 0
}
