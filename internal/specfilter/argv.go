package specfilter

import (
	"slices"
	"strings"
)

// call is what the shim has to know of one command line of runc.
type call struct {
	command string
	// bundle is the bundle directory of create, run and restore: "." unless named.
	bundle string
	// resources is update's --resources: a path, "-" for standard input, "" when the limits are flags.
	resources string
	// log and jsonLog are --log and --log-format=json.
	log     string
	jsonLog bool

	flags []flagArg
}

// flagArg is one flag with its place in the argument list; two places when the value is an argument of its own.
type flagArg struct {
	name       string
	value      string
	first, end int
}

// The flags of runc 1.5 that take a value: the global ones, and those of create, run, restore and update. A flag that is
// not here is taken for a switch.
const (
	globalValues  = " log log-format root rootless criu "
	commandValues = " bundle b console-socket pidfd-socket pid-file preserve-fds" +
		" image-path work-path manage-cgroups-mode empty-ns lsm-profile lsm-mount-context status-fd" +
		" resources r blkio-weight cpu-period cpu-quota cpu-burst cpu-share cpu-rt-period cpu-rt-runtime cpuset-cpus" +
		" cpuset-mems kernel-memory kernel-memory-tcp memory cpu-idle memory-reservation memory-swap pids-limit" +
		" l3-cache-schema mem-bw-schema "
)

// parseCall reads the arguments of runc (without the program's name) as Go's flag package does, which runc's
// command-line library uses: one dash or two, "=" or the next argument, flags end at the first other argument.
func parseCall(args []string) call {
	c := call{bundle: "."}
	next := c.scan(args, 0, globalValues)
	if next == len(args) {
		return c
	}
	c.command = args[next]
	switch c.command {
	case "create", "run", "restore", "update":
		c.scan(args, next+1, commandValues)
	}
	return c
}

func (c *call) scan(args []string, i int, withValue string) int {
	for i < len(args) {
		a := args[i]
		if a == "--" {
			return i + 1
		}
		if len(a) < 2 || a[0] != '-' {
			return i
		}
		name, value, inline := strings.Cut(strings.TrimPrefix(a[1:], "-"), "=")
		f := flagArg{name: name, value: value, first: i, end: i + 1}
		if !inline && strings.Contains(withValue, " "+name+" ") && i+1 < len(args) {
			f.value, f.end = args[i+1], i+2
		}
		i = f.end
		c.flags = append(c.flags, f)
		c.take(f)
	}
	return i
}

func (c *call) take(f flagArg) {
	switch f.name {
	case "bundle", "b":
		if f.value != "" {
			c.bundle = f.value
		}
	case "resources", "r":
		c.resources = f.value
	case "log":
		c.log = f.value
	case "log-format":
		c.jsonLog = f.value == "json"
	}
}

// resourcesFromStdin returns args with --resources pointing at standard input.
func (c *call) resourcesFromStdin(args []string) []string {
	var out []string
	last := 0
	for _, f := range c.flags {
		if f.name == "resources" || f.name == "r" {
			out = append(out, args[last:f.first]...)
			out = append(out, "--resources=-")
			last = f.end
		}
	}
	return append(out, args[last:]...)
}

// withoutFlags returns args without update's flags for controllers in drop.
func (c *call) withoutFlags(args, drop []string) []string {
	var out []string
	last := 0
	for _, f := range c.flags {
		if slices.Contains(drop, flagController(f.name)) {
			out = append(out, args[last:f.first]...)
			last = f.end
		}
	}
	return append(out, args[last:]...)
}

// flagController names the controller behind a flag of `runc update`, "" for any other.
func flagController(name string) string {
	switch name {
	case "cpuset-cpus", "cpuset-mems":
		return "cpuset"
	case "cpu-period", "cpu-quota", "cpu-burst", "cpu-share", "cpu-rt-period", "cpu-rt-runtime", "cpu-idle":
		return "cpu"
	case "memory", "memory-reservation", "memory-swap", "kernel-memory", "kernel-memory-tcp":
		return "memory"
	case "pids-limit":
		return "pids"
	case "blkio-weight":
		return "io"
	}
	return ""
}
