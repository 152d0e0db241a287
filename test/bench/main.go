// Command bench compares rootlessnode with the alternatives: a careful shell script under RootlessKit's command line,
// `rootlesskit … true`, and nsenter(1). It prints a table and writes all samples to JSON files. It fails if a side does not work, but
// not if the machine is slow. In every case it stops both sides and removes their data.
//
// It runs as the account that runs the nodes. hack/bench.sh builds the programs and copies them to where the account can run them.
// docs/benchmarks.md explains the results.
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

// Parts that can be selected.
const (
	partReady      = "ready"
	partNamespaces = "namespaces"
	partExec       = "exec"
	partMemory     = "memory"
	partThroughput = "throughput"
	partPorts      = "ports"
	partMounts     = "mounts"
	partRollout    = "rollout"
)

type options struct {
	bin, rootlesskit, namespaces, empty, script, ports, mounts, rollout string
	out, work, name                                                     string
	port                                                                int
	parts                                                               string
	pairs, nsPairs, execPairs                                           int
	rest, limit, quiet                                                  time.Duration
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
	sibling := func(name string) string { return filepath.Join(filepath.Dir(exe), name) }
	home, err := os.UserHomeDir()
	if err != nil {
		return o, err
	}
	flag.StringVar(&o.bin, "rootlessnode", sibling("rootlessnode"), "the program that is measured")
	flag.StringVar(&o.rootlesskit, "rootlesskit", sibling("rootlesskit"), "RootlessKit's command line")
	flag.StringVar(&o.namespaces, "namespaces", sibling("bench-namespaces"), "rootlessnode's parent and child with nothing inside (test/bench/namespaces)")
	flag.StringVar(&o.empty, "empty", sibling("bench-empty"), "a Go program that does nothing (test/bench/empty)")
	flag.StringVar(&o.ports, "ports", sibling("bench-ports"), "the benchmark of ports (test/bench/ports)")
	flag.StringVar(&o.mounts, "mounts", sibling("bench-mounts"), "the benchmark of mounts (test/bench/mounts)")
	flag.StringVar(&o.rollout, "rollout", sibling("bench-rollout"), "the benchmark of rolling updates (test/bench/rollout)")
	flag.StringVar(&o.script, "script", sibling("bare.sh"), "the bare script")
	flag.StringVar(&o.out, "out", "_out/bench", "directory for the JSON files")
	flag.StringVar(&o.work, "work", filepath.Join(home, ".rootlessnode-bench"), "directory for the nodes' data; created, and removed at the end")
	flag.StringVar(&o.name, "name", "bench", "name of rootlessnode's node")
	flag.IntVar(&o.port, "port", 16443, "port of the host for the API server, on both sides")
	flag.StringVar(&o.parts, "parts", strings.Join([]string{partNamespaces, partMemory, partExec, partThroughput, partRollout, partReady}, ","), "what to measure; "+partPorts+" and "+partMounts+" need no node")
	flag.IntVar(&o.pairs, "pairs", 5, "pairs of starts, of a new cluster and of an existing one")
	flag.IntVar(&o.nsPairs, "namespace-pairs", 20, "pairs of namespaces")
	flag.IntVar(&o.execPairs, "exec-pairs", 100, "pairs of exec and nsenter")
	flag.DurationVar(&o.rest, "rest", 20*time.Second, "pause between Ready and the reading of the node's memory")
	flag.DurationVar(&o.limit, "limit", 3*time.Minute, "time limit for each start or stop")
	flag.DurationVar(&o.quiet, "quiet", 30*time.Second, "longest wait for an idle machine before each start")
	flag.Parse()
	if flag.NArg() > 0 {
		return o, fmt.Errorf("unexpected arguments: %q", flag.Args())
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
