package specfilter

import (
	"slices"
	"strings"
)

// call is a parsed command line of runc.
type call struct {
	command string
	// bundle is the bundle directory of create, run and restore; "." if it is not set.
	bundle string
	// resources is the value of --resources of update: a path, "-" for standard input, or "" if the limits are flags.
	resources string
	// log is the value of --log, and jsonLog is set for --log-format=json.
	log     string
	jsonLog bool

	flags []flagArg
}

// flagArg is a flag with its position in the argument list. It has two arguments if the value is a separate argument.
type flagArg struct {
	name       string
	value      string
	first, end int
}

// The flags of runc 1.5 that have a value: the global ones, and those of create, run, restore and update. Other flags are treated as
// switches without a value.
const (
	globalValues  = " log log-format root rootless criu "
	commandValues = " bundle b console-socket pidfd-socket pid-file preserve-fds" +
		" image-path work-path manage-cgroups-mode empty-ns lsm-profile lsm-mount-context status-fd" +
		" resources r blkio-weight cpu-period cpu-quota cpu-burst cpu-share cpu-rt-period cpu-rt-runtime cpuset-cpus" +
		" cpuset-mems kernel-memory kernel-memory-tcp memory cpu-idle memory-reservation memory-swap pids-limit" +
		" l3-cache-schema mem-bw-schema "
)

// parseCall parses the arguments of runc (without the program's name) like Go's flag package, which runc's command-line library uses: flags
// have one or two dashes, the value follows "=" or is the next argument, and the first other argument ends the flags.
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

// resourcesFromStdin returns args with --resources=-, so that runc reads standard input.
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

// flagController returns the cgroup controller for a flag of `runc update`, or "" for other flags.
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
