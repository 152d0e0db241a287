package preflight

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
)

// sudoMark marks a command for root. render replaces it with sudo if that is installed.
const sudoMark = "\x00"

// fix is a hint in parts, so that several hints can be merged into one.
type fix struct {
	// programs are the programs to install, all with one command.
	programs []string
	// lines are shell commands and comments in their order.
	lines []string
	// setup is set if host setup can do the commands for root instead.
	setup bool

	distro hostinfo.Distro
	// sudo is set if sudo is installed.
	sudo      bool
	setupLine string
}

func (f *fix) add(lines ...string) { f.lines = append(f.lines, lines...) }

// asRoot marks commands that only root can run.
func asRoot(command string) string { return sudoMark + command }

// setSysctl returns the commands that set a sysctl now and at each boot.
func setSysctl(key string, value int) []string {
	setting := fmt.Sprintf("%s=%d", key, value)
	return []string{asRoot("sysctl -w " + setting), "echo " + setting + " | " + asRoot("tee -a "+hostinfo.SysctlFile)}
}

// loadModules returns the commands that load kernel modules now and at each boot.
func loadModules(names ...string) []string {
	return []string{
		asRoot("modprobe -a " + strings.Join(names, " ")),
		`printf "%s\n" ` + strings.Join(names, " ") + " | " + asRoot("tee -a "+hostinfo.ModulesFile),
	}
}

func (f *fix) empty() bool { return len(f.programs) == 0 && len(f.lines) == 0 }

func (f *fix) merge(o fix) {
	f.programs = append(f.programs, o.programs...)
	for _, line := range o.lines {
		// Drop duplicate commands only: lines of here-documents and comments belong to their command.
		if strings.HasPrefix(line, sudoMark) && slices.Contains(f.lines, line) {
			continue
		}
		f.lines = append(f.lines, line)
	}
	f.setup = f.setup || o.setup
	if o.setupLine != "" {
		f.distro, f.sudo, f.setupLine = o.distro, o.sudo, o.setupLine
	}
}

// render returns the commands and comments as one block of text.
func (f *fix) render() string {
	var out []string
	if len(f.programs) > 0 {
		line := f.distro.InstallCommand(f.programs)
		if !strings.HasPrefix(line, "#") {
			line = sudoMark + line
		}
		out = append(out, line)
	}
	out = append(out, f.lines...)
	if f.setup {
		out = append(out, f.setupLine)
	}
	if f.sudo {
		return strings.ReplaceAll(strings.Join(out, "\n"), sudoMark, "sudo ")
	}
	root, user := partition(out)
	if len(root) == 0 {
		return strings.Join(user, "\n")
	}
	root = append([]string{"# as root:"}, root...)
	if len(user) > 0 {
		root = append(append(root, "# as the user:"), user...)
	}
	return strings.ReplaceAll(strings.Join(root, "\n"), sudoMark, "")
}

// partition splits lines into those for root and those for the user. A comment belongs to the command that follows it, and
// the lines of a here-document to its first line.
func partition(lines []string) (root, user []string) {
	var comments []string
	document := false
	for _, line := range lines {
		switch {
		case document:
			root = append(root, line)
			document = line != hereEnd
		case strings.HasPrefix(line, "#") && strings.Contains(line, sudoMark):
			root = append(root, line)
		case strings.HasPrefix(line, "#"):
			comments = append(comments, line)
		case strings.Contains(line, sudoMark):
			root = append(append(root, comments...), line)
			comments, document = nil, strings.Contains(line, "<<'"+hereEnd+"'")
		default:
			user = append(append(user, comments...), line)
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
		f.fix.distro, f.fix.sudo, f.fix.setupLine = h.distro(), h.lookPath("sudo") != "", h.setupLine()
		f.Hint = f.fix.render()
	}
	return findings
}

// fixFromText converts a hint of pkg/cgroupv2, which is prose with indented commands, into a fix.
func (h *host) fixFromText(hint string) fix {
	var f fix
	for line := range strings.Lines(hint) {
		line = strings.TrimRight(line, "\n")
		line = strings.ReplaceAll(line, " rootlessnode host ", " "+h.self()+" host ") // rootlessnode may not be on root's PATH
		command, indented := strings.CutPrefix(line, "  ")
		switch {
		case line == "":
		case !indented:
			f.add("# " + line)
		case strings.HasPrefix(command, "sudo "), strings.Contains(command, "| sudo "): // the left side of a pipe needs no root
			f.add(strings.ReplaceAll(command, "sudo ", sudoMark))
		default:
			f.add(command)
		}
	}
	return f
}
