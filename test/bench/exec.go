package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// execLimit is the time limit for one run of a program that does nothing.
const execLimit = 10 * time.Second

// execWarmUp is the number of first runs that are not counted.
const execWarmUp = 5

// execTraces is the number of traces of the initialisation of packages.
const execTraces = 10

// packageInit is the duration of the initialisation of one package in milliseconds, from GODEBUG=inittrace=1.
type packageInit struct {
	Package string  `json:"package"`
	MS      float64 `json:"ms"`
}

// exec measures true(1) inside, run by rootlessnode exec and by nsenter, and the lower bounds of both: true(1) on the host and an empty
// Go program.
func (b *bench) exec(ctx context.Context) ([]row, error) {
	pid, err := os.ReadFile(filepath.Join(layout.NewRuntime(os.Getenv("XDG_RUNTIME_DIR"), b.name).StateDir(), "child_pid"))
	if err != nil {
		return nil, err
	}
	const program = "/bin/true"
	runs := []struct {
		name string
		argv []string
	}{
		{"exec", []string{b.bin, "--name", b.name, "exec", "--", program}},
		{"nsenter", []string{"nsenter", "-t", strings.TrimSpace(string(pid)), "-U", "--preserve-credentials", "-m", "-n", "-p", "-i", "-u", "-C", program}},
		{"true", []string{program}},
		{"empty", []string{b.empty}},
	}
	b.waitQuiet(ctx)
	samples := map[string][]float64{}
	for i := range b.execPairs + execWarmUp {
		for _, r := range runs {
			took, err := once(ctx, r.argv)
			if err != nil {
				return nil, err
			}
			if i >= execWarmUp {
				samples[r.name] = append(samples[r.name], took)
			}
		}
	}
	inits, total, err := b.initTraces(ctx, runs[0].argv)
	if err != nil {
		return nil, err
	}
	runtime := summarize(samples["empty"]).Median
	const target = 8
	rows := []row{
		compared("exec -- true, against nsenter … true", samples["exec"], samples["nsenter"], "ms", target),
		{what: "  only true", peer: show(summarize(samples["true"]), "ms")},
		{what: "  of which start of any Go program", own: show(summarize(samples["empty"]), "ms")},
		{what: "  of which initialisation of packages", own: fmt.Sprintf("%.2f ms", total)},
		{what: "  of which the rest", own: fmt.Sprintf("%.2f ms", (summarize(samples["exec"]).Median-runtime)*1000-total)},
	}
	return rows, b.save(partExec, map[string]any{"seconds": samples, "packageInit": inits})
}

func once(ctx context.Context, argv []string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, execLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	t0 := time.Now()
	err := cmd.Run()
	took := time.Since(t0).Seconds()
	if err != nil {
		return 0, fmt.Errorf("%s: %w", strings.Join(argv, " "), err)
	}
	return took, nil
}

// initLine matches a line of GODEBUG=inittrace=1: init PACKAGE @START ms, TOOK ms clock, …
var initLine = regexp.MustCompile(`^init (\S+) @\S+ ms, (\S+) ms clock`)

// initTraces returns the fastest of several traces, and its sum in milliseconds. Slower traces were disturbed by other processes.
func (b *bench) initTraces(ctx context.Context, argv []string) (best []packageInit, ms float64, err error) {
	for range execTraces {
		trace, err := b.initTrace(ctx, argv)
		if err != nil {
			return nil, 0, err
		}
		var sum float64
		for _, p := range trace {
			sum += p.MS
		}
		if best == nil || sum < ms {
			best, ms = trace, sum
		}
	}
	return best, ms, nil
}

// initTrace returns how long each package of argv took to initialise, the slowest first.
func (b *bench) initTrace(ctx context.Context, argv []string) ([]packageInit, error) {
	ctx, cancel := context.WithTimeout(ctx, execLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	var trace strings.Builder
	cmd.Stderr = &trace
	if err := cmd.Run(); err != nil {
		return nil, err
	}
	var out []packageInit
	for line := range strings.Lines(trace.String()) {
		if m := initLine.FindStringSubmatch(line); m != nil {
			ms, err := strconv.ParseFloat(m[2], 64)
			if err != nil {
				return nil, err
			}
			out = append(out, packageInit{m[1], ms})
		}
	}
	slices.SortFunc(out, func(a, b packageInit) int { return int((b.MS - a.MS) * 1e6) })
	return out, nil
}
