package preflight

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// sudoMark marks a command for root. hint replaces it with sudo if that is installed.
const sudoMark = "\x00"

// fix is a hint in parts, so that several hints can be merged into one.
type fix struct {
	// programs are the programs to install, all with one command.
	programs []string
	// steps are shell commands, comments and actions in their order, one line each.
	steps errdefs.Hint
	// setup is set if host setup can do the commands for root instead.
	setup bool

	distro hostinfo.Distro
	// sudo is set if sudo is installed. distrust is why root must not run this program, if it must not.
	sudo     bool
	distrust error
	account  string
}

func (f *fix) add(lines ...string) {
	for _, line := range lines {
		if strings.HasPrefix(line, "#") { // a path in a comment may contain a newline
			line = strings.ReplaceAll(line, "\n", "?")
		}
		f.steps = f.steps.Text(line)
	}
}

// asRoot marks commands that only root can run.
func asRoot(command string) string { return sudoMark + command }

// addLine returns the command that adds a line to a file, unless the file has the line.
func addLine(file, line string) string {
	line = hostinfo.Quote(line)
	return fmt.Sprintf("grep -qsxF %[1]s %[2]s || echo %[1]s | %[3]s >/dev/null", line, file, asRoot("tee -a "+file))
}

// setSysctl returns the commands that set a sysctl now and at each boot.
func setSysctl(key string, value int) []string {
	setting := fmt.Sprintf("%s=%d", key, value)
	return []string{asRoot("sysctl -w " + setting), addLine(hostinfo.SysctlFile, setting)}
}

// loadModules returns the commands that load kernel modules now and at each boot.
func loadModules(names ...string) []string {
	lines := []string{asRoot("modprobe -a " + strings.Join(names, " "))}
	for _, name := range names {
		lines = append(lines, addLine(hostinfo.ModulesFile, name))
	}
	return lines
}

// disableRow returns the command that turns a row of a file into a comment. It matches the row by its text, so that it can be
// repeated after the file has changed.
func disableRow(file, row string) string {
	var pattern strings.Builder
	for _, r := range row {
		if strings.ContainsRune(`\.[]*^$|`, r) {
			pattern.WriteByte('\\')
		}
		pattern.WriteRune(r)
	}
	return asRoot("sed -i " + hostinfo.Quote(`\|^[[:space:]]*`+pattern.String()+`[[:space:]]*$|s|^|# |`) + " " + file)
}

func (f *fix) empty() bool { return len(f.programs) == 0 && len(f.steps) == 0 }

// forRoot reports whether only root can do a step.
func forRoot(s errdefs.Step) bool { return s.Sudo || strings.Contains(s.Text, sudoMark) }

// withoutMark returns the step with the text in place of sudoMark.
func withoutMark(s errdefs.Step, text string) errdefs.Step {
	s.Text = strings.ReplaceAll(s.Text, sudoMark, text)
	return s
}

func (f *fix) merge(o fix) {
	f.programs = append(f.programs, o.programs...)
	for _, s := range o.steps {
		// Drop duplicate commands only: lines of here-documents and comments belong to their command.
		if (s.Sudo || strings.HasPrefix(s.Text, sudoMark)) && slices.ContainsFunc(f.steps, func(have errdefs.Step) bool { return reflect.DeepEqual(have, s) }) {
			continue
		}
		f.steps = append(f.steps, s)
	}
	f.setup = f.setup || o.setup
	if o.account != "" {
		f.distro, f.sudo, f.distrust, f.account = o.distro, o.sudo, o.distrust, o.account
	}
}

// install returns the command that installs the programs, or a comment on an unknown distribution. It is empty without programs.
func (f *fix) install() errdefs.Hint {
	if len(f.programs) == 0 {
		return nil
	}
	line := f.distro.InstallCommand(f.programs)
	if !strings.HasPrefix(line, "#") {
		line = sudoMark + line
	}
	return errdefs.Text(line)
}

// hint returns the steps as one block.
func (f *fix) hint() errdefs.Hint {
	all := append(f.install(), f.steps...)
	if f.setup {
		all = append(all, errdefs.Step{
			Action: errdefs.SetUpHost, Args: []string{f.account}, Text: "or run all of the steps for root at once", Sudo: true, Alternative: true,
		})
	}
	var out errdefs.Hint
	if f.sudo {
		for _, s := range all {
			out = append(out, withoutMark(s, "sudo "))
		}
		return out
	}
	root, user := partition(all)
	if len(root) == 0 {
		return user
	}
	out = errdefs.Text("# as root:")
	for _, s := range root {
		s.Sudo = false
		out = append(out, withoutMark(s, ""))
	}
	if len(user) > 0 {
		out = append(out.Text("# as the user:"), user...)
	}
	return out
}

// partition splits steps into those for root and those for the user. A comment belongs to the command that follows it, and
// the lines of a here-document to its first line.
func partition(steps errdefs.Hint) (root, user errdefs.Hint) {
	var comments errdefs.Hint
	document := false
	for _, s := range steps {
		switch comment := s.Action == "" && strings.HasPrefix(s.Text, "#"); {
		case document:
			root = append(root, s)
			document = s.Text != hereEnd
		case s.Alternative, comment && forRoot(s):
			root = append(root, s)
		case comment:
			comments = append(comments, s)
		case forRoot(s):
			root = append(append(root, comments...), s)
			comments, document = nil, strings.Contains(s.Text, "<<'"+hereEnd+"'")
		default:
			user = append(append(user, comments...), s)
			comments = nil
		}
	}
	return root, append(user, comments...)
}

// hereEnd ends the here-documents in hints.
const hereEnd = "EOF"

// finish renders the hint of each finding.
func (h *host) finish(findings []Finding) []Finding {
	for i := range findings {
		f := &findings[i]
		if f.fix.empty() {
			continue
		}
		f.fix.distro, f.fix.sudo, f.fix.distrust, f.fix.account = h.distro(), h.lookPath("sudo") != "", h.probes.RootOnly(h.in.Exe), "NAME"
		if a, ok, _ := h.account(); ok {
			f.fix.account = a.Name
		}
		f.Steps = f.fix.hint()
		f.Hint = f.Steps.String()
	}
	return findings
}

// fixOf converts a hint of another package, in which commands for root begin with sudo, into a fix.
func fixOf(hint errdefs.Hint) fix {
	var f fix
	for _, s := range hint {
		for line := range strings.SplitSeq(s.Text, "\n") {
			if strings.HasPrefix(line, "sudo ") || strings.Contains(line, "| sudo ") { // the left side of a pipe needs no root
				line = strings.ReplaceAll(line, "sudo ", sudoMark)
			}
			s.Text = line
			f.steps = append(f.steps, s)
		}
	}
	return f
}
