package preflight

import (
	"context"
	"strings"
)

// Check describes a requirement of a node on its host. Runs in: parent.
type Check struct {
	// Code identifies the check in messages and for programs. It never changes, and is not used for another check after this one
	// was removed.
	Code string `json:"code"`
	// Name is the name of the check in one word.
	Name string `json:"check"`
	// Title names the subject of the check.
	Title string `json:"title"`
	// Why is the reason why it matters.
	Why string `json:"why"`
	// Fails and Warns are the conditions of a failure and of a warning. Empty: there is none.
	Fails string `json:"fails,omitempty"`
	Warns string `json:"warns,omitempty"`
	// Fix is how to fix it in general. Findings have the commands for their host.
	Fix string `json:"fix"`

	// run returns the findings in the order in which they are shown.
	run func(context.Context, *host) []Finding
}

// section is a group of checks, with its heading in the documentation.
type section struct {
	heading string
	checks  []Check
}

// sections returns all checks. The check root comes first: if it fails, no other check runs. Everything that iterates over checks
// uses this list: Run, Names, Explain and docs/checks.md.
func sections() []section {
	return []section{
		{"Account and login", accountChecks()},
		{"Kernel and limits", kernelChecks()},
		{"Programs", programChecks()},
		{"Network", networkChecks()},
		{"Files and disks", fileChecks()},
		{"Components", componentChecks()},
	}
}

//go:generate go test . -run TestDocs -update

// checks returns the checks in the order of their findings.
func checks() []Check {
	var all []Check
	for _, s := range sections() {
		all = append(all, s.checks...)
	}
	return all
}

// Names returns the names of the checks in the order of their findings.
func Names() []string {
	var names []string
	for _, c := range checks() {
		names = append(names, c.Name)
	}
	return names
}

// Explain returns the description of the check with the given code or name, in any case. ok is false if there is none.
func Explain(code string) (c Check, ok bool) {
	for _, c := range checks() {
		if strings.EqualFold(c.Code, code) || strings.EqualFold(c.Name, code) {
			return c, true
		}
	}
	return Check{}, false
}

// Codes returns the codes of all checks.
func Codes() []string {
	var codes []string
	for _, c := range checks() {
		codes = append(codes, c.Code)
	}
	return codes
}
