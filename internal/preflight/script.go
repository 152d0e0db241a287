package preflight

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// RootScript returns a POSIX shell script with all commands of the findings that only root can run, for example for `sudo sh`. It
// can be run again, asks nothing, and continues after a command that fails; its exit code is then 1. It executes this program only
// if no other account can replace it. words are the commands for actions.
//
// The findings must be those of Run. Runs in: parent.
func RootScript(findings []Finding, words func(errdefs.Step) string) string {
	var b strings.Builder
	b.WriteString("#!/bin/sh\n# Commands for root that fix the findings of the check of this host. They can be run again.\nfailed=\n")
	var packages fix
	var codes []string
	for _, f := range findings {
		if len(f.fix.programs) > 0 && f.Level != LevelPass {
			packages.merge(fix{programs: f.fix.programs, distro: f.fix.distro, account: f.fix.account})
			codes = append(codes, f.Code)
		}
	}
	slices.Sort(packages.programs)
	packages.programs = slices.Compact(packages.programs)
	slices.Sort(codes)
	codes = slices.Compact(codes)
	done := map[string]bool{}
	writeBlock(&b, strings.Join(codes, " "), "not found: "+strings.Join(packages.programs, ", "), scriptLines(packages.install(), nil, nil), done)
	for _, f := range findings {
		if f.Level != LevelPass {
			root, _ := partition(withActions(f.fix.steps))
			writeBlock(&b, f.Code, f.Message, scriptLines(root, f.fix.distrust, words), done)
		}
	}
	if len(done) == 0 {
		b.WriteString("# There is nothing to do for root.\n")
	}
	b.WriteString("if [ -n \"$failed\" ]; then echo \"failed:$failed\" >&2; exit 1; fi\n")
	return b.String()
}

// withActions marks the actions that only root can do.
func withActions(steps errdefs.Hint) errdefs.Hint {
	steps = slices.Clone(steps)
	for i, s := range steps {
		steps[i].Sudo = s.Sudo || s.Action == errdefs.SetUpHost || s.Action == errdefs.CreateAccount
	}
	return steps
}

// scriptLines returns the lines of root's steps without sudo.
func scriptLines(steps errdefs.Hint, distrust error, words func(errdefs.Step) string) []string {
	var lines []string
	for _, s := range steps {
		switch {
		case s.Action == "":
			lines = append(lines, withoutMark(s, "").Text)
		case s.Alternative, s.Action != errdefs.SetUpHost && s.Action != errdefs.CreateAccount:
		case distrust != nil:
			lines = append(lines, "# not run, because an account can replace the program: "+oneLine(distrust.Error()))
		default:
			s.Sudo = false
			lines = append(lines, words(s))
		}
	}
	return lines
}

// writeBlock writes the lines that fix one finding, unless an earlier block has the same lines.
func writeBlock(b *strings.Builder, code, message string, lines []string, done map[string]bool) {
	text := strings.Join(lines, "\n")
	commands := slices.ContainsFunc(lines, func(l string) bool { return !strings.HasPrefix(l, "#") })
	if text == "" || done[text] {
		return
	}
	done[text] = true
	fmt.Fprintf(b, "\n# %s: %s\n", code, oneLine(message))
	if !commands {
		b.WriteString(text + "\n")
		return
	}
	// The standard input of the commands is empty, because that of the shell may be this script.
	fmt.Fprintf(b, "(set -e\n%s\n) </dev/null\n[ $? -eq 0 ] || failed=\"$failed %s\"\n", text, code)
}

// oneLine replaces control characters, so that a message that contains a path stays in its comment.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '?'
		}
		return r
	}, text)
}
