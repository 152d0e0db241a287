package preflight

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
)

// sudoMark stands before a command for root, until it is known how root is become here.
const sudoMark = "\x00"

// fix is a hint in parts, so that several can be made one.
type fix struct {
	// programs are to be installed, all in one command.
	programs []string
	// lines are shell commands and comments in their order.
	lines []string
	// setup tells that host setup does the commands for root too.
	setup bool

	distro hostinfo.Distro
	// sudo tells that there is a sudo here.
	sudo      bool
	setupLine string
}

func (f *fix) add(lines ...string) { f.lines = append(f.lines, lines...) }

// asRoot marks commands that only root can run.
func asRoot(command string) string { return sudoMark + command }

// setSysctl sets a kernel's setting now and at each boot, or a node that is started at boot would not find it.
func setSysctl(key string, value int) []string {
	setting := fmt.Sprintf("%s=%d", key, value)
	return []string{asRoot("sysctl -w " + setting), "echo " + setting + " | " + asRoot("tee -a "+hostinfo.SysctlFile)}
}

// loadModules loads kernel modules now and at each boot.
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
		// A here-document, or a comment with its commands, repeats lines that belong to it: only commands are dropped.
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

// render writes the block that is to be pasted.
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

// partition tells the lines for root from those for the user. A comment goes with the command that follows it, the rest
// of a here-document with its first line.
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

// finish turns the parts of each finding's hint into text.
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

// fixFromText takes a hint of pkg/cgroupv2, prose with indented commands, apart.
func (h *host) fixFromText(hint string) fix {
	var f fix
	for line := range strings.Lines(hint) {
		line = strings.TrimRight(line, "\n")
		line = strings.ReplaceAll(line, " rootlessnode host ", " "+h.self()+" host ") // root's PATH may not have us
		command, indented := strings.CutPrefix(line, "  ")
		switch {
		case line == "":
		case !indented:
			f.add("# " + line)
		case strings.HasPrefix(command, "sudo "), strings.Contains(command, "| sudo "): // a pipe's left side is for anybody
			f.add(strings.ReplaceAll(command, "sudo ", sudoMark))
		default:
			f.add(command)
		}
	}
	return f
}
