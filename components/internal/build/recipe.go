package main

import (
	"path/filepath"
	"slices"
	"strings"
)

// recipe returns the command that builds a target.
type recipe interface {
	// command returns the command that writes the file output, to be run in the
	// module's directory. Its result must depend only on the inputs, because a
	// target is built again if the result changes.
	command(in inputs) command
	// tools are the host's programs and libraries that the command needs.
	tools() toolset
}

// inputs are the inputs of a recipe.
type inputs struct {
	toolchain toolchain
	moduleDir string
	outDir    string
	output    string
	version   string // with a leading v, if upstream has one
	image     string
}

// command is a program with its arguments, and variables that are added to the
// environment.
type command struct {
	args []string
	env  []string
}

// toolset is the set of tools that must be installed.
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
	modFile   string   // empty for go.mod
	tags      []string // in addition to goTags
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
		// Position independent and static, as in upstream's releases. The two tags
		// exclude the C library's resolver and user database, which a static program
		// cannot use.
		args = append(args, "-buildmode=pie")
		tags = append(tags, "netgo", "osusergo")
		linker = append(linker, "-linkmode", "external", "-extldflags", "-static-pie")
	}
	if g.modFile != "" {
		args = append(args, "-modfile="+g.modFile)
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

// imageArchive writes an image archive with one program of another target.
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
		// The tool runs on the build host, whatever the architecture of the image is.
		env: []string{"CGO_ENABLED=0", "GOOS=", "GOARCH="},
	}
}
