package main

import (
	"path/filepath"
	"slices"
	"strings"
)

// recipe turns a target into a command to run.
type recipe interface {
	// command returns what to run in the module's directory so that it writes
	// the file output. It must not depend on anything besides its arguments, as
	// a change in its result is what makes a target be built again.
	command(in inputs) command
	// tools are the host's programs and libraries that the command needs.
	tools() toolset
}

// inputs are what a recipe may know.
type inputs struct {
	toolchain toolchain
	moduleDir string
	outDir    string
	output    string
	version   string // with its leading v, if upstream has one
	image     string
}

// command is a program with its arguments, and its environment on top of ours.
type command struct {
	args []string
	env  []string
}

// toolset says what must be installed.
type toolset struct {
	c          bool // a C compiler and a static C library
	libseccomp bool // the static library, its headers and pkg-config
}

// goTags are set for every Go program, so that all of them share compiled
// packages. grpcnotrace drops a tracing page that needs a template engine, and
// with it all methods that the linker must otherwise keep.
var goTags = []string{"grpcnotrace"}

// goProgram builds a Go main package.
type goProgram struct {
	pkg       string   // empty for the module's own
	tags      []string // besides goTags
	variables []string // PACKAGE.NAME=VALUE, set by the linker
	// static links C code, but statically; without it there is no C code at all.
	static bool
}

func (g goProgram) tools() toolset {
	return toolset{c: g.static, libseccomp: slices.Contains(g.tags, "seccomp")}
}

func (g goProgram) command(in inputs) command {
	linker := []string{"-s", "-w"}
	for _, v := range g.variables {
		linker = append(linker, "-X", expand(v, in.version))
	}
	env := []string{"CGO_ENABLED=0"}
	args := []string{in.toolchain.goCommand, "build", "-v", "-mod=readonly", "-buildvcs=false", "-trimpath"}
	tags := slices.Concat(goTags, g.tags)
	if g.static {
		env[0] = "CGO_ENABLED=1"
		// Position independent and static at once, as upstream's releases. The
		// two tags keep the C library's resolver and user database out, which a
		// static program could not use.
		args = append(args, "-buildmode=pie")
		tags = append(tags, "netgo", "osusergo")
		linker = append(linker, "-linkmode", "external", "-extldflags", "-static-pie")
	}
	args = append(args, "-tags="+strings.Join(tags, ","), "-ldflags="+strings.Join(linker, " "), "-o", in.output)
	if g.pkg == "" {
		return command{append(args, "."), env}
	}
	return command{append(args, g.pkg), env}
}

// cProgram compiles a single C file to a small static program.
type cProgram struct {
	source  string
	defines []string
}

func (cProgram) tools() toolset { return toolset{c: true} }

func (p cProgram) command(in inputs) command {
	args := slices.Concat(strings.Fields(in.toolchain.CC), []string{
		"-std=gnu11", "-Os", "-Wall", "-Wextra", "-Werror",
		"-static", "-s", "-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections,--build-id=none",
	})
	for _, d := range p.defines {
		args = append(args, "-D"+expand(d, in.version))
	}
	return command{args: append(args, "-o", in.output, p.source)}
}

// imageArchive puts one program, made by another target, into an image archive.
type imageArchive struct {
	part string // the program, in the directory of private parts and in the image's root
	user string
}

func (imageArchive) tools() toolset { return toolset{} }

func (a imageArchive) command(in inputs) command {
	name := "/" + a.part
	return command{
		args: []string{
			in.toolchain.goCommand, "run", "-mod=readonly", "-buildvcs=false", "-trimpath", ".",
			"-o", in.output, "-name", in.image, "-arch", in.toolchain.GOARCH, "-user", a.user,
			"-entrypoint", name, "-file", name + "=" + filepath.Join(in.outDir, private, a.part),
		},
		// The tool runs here, whatever the archive is for.
		env: []string{"CGO_ENABLED=0", "GOOS=", "GOARCH="},
	}
}
