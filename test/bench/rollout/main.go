// Command rollout measures what the clients of a Service notice of rolling updates: a Deployment with three replicas behind a
// node port is updated several times while clients on the host send requests, each with a new connection. It prints one line
// for each kind of program, and fails only if a rollout or the node fails.
//
// It needs a running node. The server in the pods is this program too, from a hostPath volume, in the image of the pod
// sandboxes, so that nothing has to be pulled.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

type options struct {
	bin, name, dir, image, json string
	port, clients, updates      int
	rest                        time.Duration
}

func main() {
	if len(os.Args) == 3 && os.Args[1] == roleServe {
		exit(serve(os.Args[2]))
	}
	var o options
	flag.StringVar(&o.bin, "rootlessnode", "rootlessnode", "the command line of the node")
	flag.StringVar(&o.name, "name", "default", "name of the node")
	flag.StringVar(&o.dir, "dir", "", "directory of the host for the server's program; the node must see it")
	flag.StringVar(&o.image, "image", "registry.k8s.io/pause:3.10.2", "image of the pods; the node must have it")
	flag.StringVar(&o.json, "json", "", "file for all samples")
	flag.IntVar(&o.port, "node-port", 30150, "node port of the Service")
	flag.IntVar(&o.clients, "clients", 4, "clients that send requests at the same time")
	flag.IntVar(&o.updates, "updates", 3, "updates of each kind of program")
	flag.DurationVar(&o.rest, "rest", 5*time.Second, "time of the load before the first update and after each one")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, o)
	stop()
	exit(err)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// program is a kind of server: how it behaves when its pod is deleted.
type program struct {
	Name string `json:"name"`
	// PreStop is the time between the removal of the endpoint and TERM, in seconds.
	PreStop int `json:"preStop"`
}

func programs() []program {
	return []program{{"well-behaved (preStop: sleep 3)", 3}, {"exits at once on TERM", 0}}
}

func run(ctx context.Context, o options) error {
	c, err := prepare(ctx, o)
	if err != nil {
		return err
	}
	var all []result
	for _, p := range programs() {
		r, err := c.measure(ctx, p)
		if err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
		fmt.Println(r)
		all = append(all, r)
	}
	if o.json == "" {
		return nil
	}
	data, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(o.json, append(data, '\n'), 0o644)
}

// stall is the time from which a client notices a request as slow.
const stall = 500 * time.Millisecond

// result has the samples of one kind of program.
type result struct {
	Program program `json:"program"`
	// Ended is the number of pods that the updates have ended.
	Ended    int       `json:"endedPods"`
	Requests int       `json:"requests"`
	Failed   []request `json:"failed"`
	Stalled  []request `json:"stalled"`
	// Longest is the longest request, and Gap the longest time without an answer of a UDP client, in seconds.
	Longest float64 `json:"longest"`
	Gap     float64 `json:"longestGapUDP"`
}

func (r *result) add(x request) {
	r.Requests++
	r.Longest = max(r.Longest, x.Seconds)
	if x.Error != "" {
		r.Failed = append(r.Failed, x)
	}
	if x.Seconds > stall.Seconds() {
		r.Stalled = append(r.Stalled, x)
	}
}

func (r result) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-32s  %d pods ended  %6d requests  %d failed  %d longer than %v  longest %.2f s  UDP: longest gap %.2f s",
		r.Program.Name, r.Ended, r.Requests, len(r.Failed), len(r.Stalled), stall, r.Longest, r.Gap)
	for _, list := range [][]request{r.Failed, r.Stalled} {
		for _, x := range list {
			fmt.Fprintf(&b, "\n  at %.2f s: %.2f s %s", x.At, x.Seconds, x.Error)
		}
	}
	return b.String()
}
