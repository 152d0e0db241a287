package redact

import (
	"regexp"
	"strings"
)

// pattern recognizes secrets by their form.
type pattern struct {
	find *regexp.Regexp
	// with replaces a match. It has the parts of the match that are kept.
	with string
	// keep reports whether a match is not a secret. It may be nil.
	keep func(groups []string) bool
}

func (p pattern) remove(text string) string {
	if p.keep == nil {
		return p.find.ReplaceAllString(text, p.with)
	}
	return p.find.ReplaceAllStringFunc(text, func(match string) string {
		if p.keep(p.find.FindStringSubmatch(match)) {
			return match
		}
		return p.find.ReplaceAllString(match, p.with)
	})
}

// secretName is a name that announces a secret. Longer names may contain it.
const secretName = `(?:pass(?:word|wd|phrase|code)?|pwd|secret|token|api[-_.]?key|access[-_.]?key|(?:private|client|signing|encryption|account|session)[-_.]?key(?:[-_.]?data)?|` +
	`credentials?|auth(?:orization)?|cookie|bearer|psk|webhook[-_.]?url)`

// plainSuffix is the end of names whose values are not secrets although they contain a secretName.
var plainSuffix = regexp.MustCompile(`(?i)(?:file|path|dir|directory|name|names|mode|modes|ttl|expiration|seconds|hash|hashes|kind|type|size|version|ids?|issuer|` +
	`audiences?|url|accountToken|count|limit|config|policy|provider|plugin|enabled|strategy|go)["'\\]*[ \t]*[:=][ \t]*(?:\[[ \t]*)?$`)

// plainValue matches values that are not secrets.
var plainValue = regexp.MustCompile(`^(?i:\\*["']?(?:true|false|null|none|nil|[0-9.]{1,5}|/[-\w./]*|\[REDACTED\]|[\[{(<].*|[\])}>]*)\\*["']?)$`)

// patterns are applied in this order.
var patterns = []pattern{
	{find: regexp.MustCompile(`-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----(?s:.*?)(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\z)`), with: Mark},
	// A JSON Web Token, such as the token of a service account.
	{find: regexp.MustCompile(`\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)*`), with: Mark},
	// A bootstrap token of Kubernetes.
	{find: regexp.MustCompile(`\b[a-z0-9]{6}\.[a-z0-9]{16}\b`), with: Mark},
	// User and password in a URL.
	{find: regexp.MustCompile(`(\b[a-zA-Z][a-zA-Z0-9+.-]*://)[^\s"'/@]+(?::[^\s"'@]*)?@`), with: "${1}" + Mark + "@"},
	// Also without a scheme, as in the value of a proxy variable.
	{find: regexp.MustCompile(`(?i)(proxy["'\\]*\s*[:=]\s*\\*["']?)[^\s"'@]+@`), with: "${1}" + Mark + "@"},
	{find: regexp.MustCompile(`(?i)\b(bearer|basic|negotiate)(\s+|%20|\+)[\w.~+/=%-]{6,}`), with: "${1}${2}" + Mark},
	// Tokens of well-known services.
	{find: regexp.MustCompile(`\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{16,}|\bgithub_pat_\w{16,}|\bgl[a-z]{2,4}-[\w-]{16,}|\bxox[a-z]-[\w-]{8,}|` +
		`\bAIza[\w-]{30,}|\bsk-[\w-]{16,}|\bdckr_pat_[\w-]{8,}|\bnpm_[A-Za-z0-9]{20,}`), with: Mark},
	// The hash of a password.
	{find: regexp.MustCompile(`\$(?:1|2[abxy]|5|6|7|y|gy|apr1|argon2i?d?)\$[\w./$+,=-]{8,}`), with: Mark},
	// A name that announces a secret, with its value: of a line of YAML, of a flag, or of JSON, a variable or a query.
	{find: regexp.MustCompile(`(?im)^(\s*(?:- )?[\w.-]*` + secretName + `[\w.-]*:[ \t]+)(.+)$`), with: "${1}" + Mark, keep: isPlain},
	{find: regexp.MustCompile(`(?i)(--?[\w-]*` + secretName + `[\w-]*(?:[ \t]+|\+|%20))([^\s"'=-][^\s"']*)`), with: "${1}" + Mark, keep: isPlain},
	{
		find: regexp.MustCompile(`(?i)([\w.-]*` + secretName + `[\w.-]*\\*["']?[ \t]*[:=][ \t]*(?:\[[ \t]*)?)(\\*"(?:[^"\\]|\\[^"])*\\*"|'[^']*'|[^\s,;&"'}\\]+)`),
		with: "${1}" + Mark, keep: isPlain,
	},
}

// isPlain reports whether the match of a name (first group) and its value is not a secret.
func isPlain(groups []string) bool {
	name, value := groups[1], strings.TrimSpace(groups[2])
	if strings.HasPrefix(strings.TrimSpace(name), "-") && !strings.ContainsAny(name, ":=") { // a flag with a separate value
		name = strings.TrimSpace(name) + "="
	}
	return plainValue.MatchString(value) || plainSuffix.MatchString(name)
}
