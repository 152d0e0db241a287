// Command bench compares rootlessnode with what one would use without it: a careful shell script under RootlessKit's
// command line, `rootlesskit … true`, and nsenter(1). It prints a table and writes every sample to JSON files. It asserts
// no time: a slow machine is no fault. A side that does not work is one, and then nothing of either side is left.
//
// It runs as the account that is to have the nodes; hack/bench.sh builds what it needs and gets it there.
// docs/benchmarks.md says what the numbers mean.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Parts that can be asked for.
const (
	partReady      = "ready"
	partNamespaces = "namespaces"
	partExec       = "exec"
	partMemory     = "memory"
	partThroughput = "throughput"
	partPorts      = "ports"
	partMounts     = "mounts"
)

type options struct {
	bin, rootlesskit, namespaces, empty, script, ports, mounts string
	out, work, name                                            string
	port                                                       int
	parts                                                      string
	pairs, nsPairs, execPairs                                  int
	rest, limit, quiet                                         time.Duration
}

func main() {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case roleObserve:
			exit(observe(os.Args[2:]))
		case roleClaim:
			exit(claim(os.Args[2:]))
		case roleSink:
			exit(sink(os.Args[2:]))
		case roleRelay:
			exit(relay(os.Args[2:]))
		}
	}
	o, err := parse()
	if err != nil {
		exit(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	err = run(ctx, o)
	stop()
	exit(err)
}

func exit(err error) {
	if err == nil {
		os.Exit(0)
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintln(os.Stderr, "error:", strings.TrimRight(line, "\n"))
	}
	os.Exit(1)
}

func parse() (options, error) {
	var o options
	exe, err := os.Executable()
	if err != nil {
		return o, err
	}
	beside := func(name string) string { return filepath.Join(filepath.Dir(exe), name) }
	home, err := os.UserHomeDir()
	if err != nil {
		return o, err
	}
	flag.StringVar(&o.bin, "rootlessnode", beside("rootlessnode"), "the program that is measured")
	flag.StringVar(&o.rootlesskit, "rootlesskit", beside("rootlesskit"), "RootlessKit's command line")
	flag.StringVar(&o.namespaces, "namespaces", beside("bench-namespaces"), "our parent and child with nothing inside (test/bench/namespaces)")
	flag.StringVar(&o.empty, "empty", beside("bench-empty"), "a Go program that does nothing (test/bench/empty)")
	flag.StringVar(&o.ports, "ports", beside("bench-ports"), "the measuring of ports (test/bench/ports)")
	flag.StringVar(&o.mounts, "mounts", beside("bench-mounts"), "the measuring of mounts (test/bench/mounts)")
	flag.StringVar(&o.script, "script", beside("bare.sh"), "the bare script")
	flag.StringVar(&o.out, "out", "_out/bench", "directory for the JSON files")
	flag.StringVar(&o.work, "work", filepath.Join(home, ".rootlessnode-bench"), "directory for the nodes' data; made, and removed in the end")
	flag.StringVar(&o.name, "name", "bench", "name of our node")
	flag.IntVar(&o.port, "port", 16443, "port of the host for the API server, on both sides")
	flag.StringVar(&o.parts, "parts", strings.Join([]string{partNamespaces, partMemory, partExec, partThroughput, partReady}, ","), "what to measure; "+partPorts+" and "+partMounts+" need no node")
	flag.IntVar(&o.pairs, "pairs", 5, "pairs of starts, of a new cluster and of an existing one")
	flag.IntVar(&o.nsPairs, "namespace-pairs", 20, "pairs of namespaces")
	flag.IntVar(&o.execPairs, "exec-pairs", 100, "pairs of exec and nsenter")
	flag.DurationVar(&o.rest, "rest", 20*time.Second, "how long a Ready node rests before its memory is read")
	flag.DurationVar(&o.limit, "limit", 3*time.Minute, "how long any single start or stop may take")
	flag.DurationVar(&o.quiet, "quiet", 30*time.Second, "how long to wait before each start for the machine to be idle")
	flag.Parse()
	if flag.NArg() > 0 {
		return o, fmt.Errorf("arguments are not understood: %q", flag.Args())
	}
	return o, nil
}

func (o options) wants(part string) bool {
	for p := range strings.SplitSeq(o.parts, ",") {
		if p == part {
			return true
		}
	}
	return false
}
