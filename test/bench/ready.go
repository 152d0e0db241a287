package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// side is one of the two compared sides.
type side interface {
	name() string
	// reset removes the cluster and keeps the images.
	reset(context.Context) error
	launch(context.Context) (*launch, error)
	stop(context.Context) error
}

// start is one sample. Times are seconds since the command was started.
type start struct {
	Side string `json:"side"`
	Kind string `json:"kind"`
	Pair int    `json:"pair"`
	// Ready is the time of the observer's last event.
	Ready float64 `json:"ready"`
	// Reported is when the side itself reported that it is ready.
	Reported float64 `json:"told"`
	// Seen has the observer's events, and Marks the side's own reports.
	Seen  map[string]float64 `json:"seen"`
	Marks map[string]float64 `json:"marks"`
	// Busy is the share of time in which the processors were busy during the start, for any process.
	Busy float64 `json:"machineBusy"`
	Load string  `json:"load"`
}

// Kinds of starts: without and with a cluster in the data dir. Both have the images.
const (
	kindNew     = "new cluster"
	kindRestart = "restart"
)

// stopDelay is the pause between Ready and the stop of a node, so that the same work is done in the clusters of both sides.
const stopDelay = 3 * time.Second

// ready starts both sides in turn. Their order alternates from pair to pair.
func (b *bench) ready(ctx context.Context) ([]row, error) {
	say("filling an image store")
	if err := b.bare.prepareStore(ctx); err != nil {
		return nil, err
	}
	var all []start
	for pair := range b.pairs {
		sides := []side{b.node, b.bare}
		if pair%2 == 1 {
			slices.Reverse(sides)
		}
		for _, s := range sides {
			if err := s.reset(ctx); err != nil {
				return nil, err
			}
			for _, kind := range []string{kindNew, kindRestart} {
				got, err := b.start(ctx, s)
				if err != nil {
					return nil, fmt.Errorf("%s, %s: %w", s.name(), kind, err)
				}
				got.Kind, got.Pair = kind, pair
				all = append(all, *got)
				say("pair %d  %-12s  %-11s  %6.2f s  (reports it at %.2f s; machine busy %.0f %%)",
					pair+1, s.name(), kind, got.Ready, got.Reported, got.Busy*100)
				if err := b.save(partReady, all); err != nil {
					return nil, err
				}
			}
		}
	}
	return b.readyRows(all), nil
}

func (b *bench) readyRows(all []start) []row {
	pick := func(s side, kind string, f func(start) float64) []float64 {
		var out []float64
		for _, x := range all {
			if x.Side == s.name() && x.Kind == kind {
				out = append(out, f(x))
			}
		}
		return out
	}
	both := func(what, kind string, target float64, f func(start) float64) row {
		return compared(what, pick(b.node, kind, f), pick(b.bare, kind, f), "s", target)
	}
	const target = 0.85
	var rows []row
	for _, kind := range []string{kindNew, kindRestart} {
		rows = append(rows,
			both("start to Ready, "+kind, kind, target, func(s start) float64 { return s.Ready }),
			both("  until the command reports it", kind, 0, func(s start) float64 { return s.Reported }),
		)
		for _, what := range observed() {
			rows = append(rows, both("  "+what, kind, 0, func(s start) float64 { return s.Seen[what] }))
		}
	}
	return rows
}

// start starts a side, waits until it is ready, and stops it.
func (b *bench) start(ctx context.Context, s side) (_ *start, err error) {
	b.waitQuiet(ctx)
	ctx, cancel := context.WithTimeout(ctx, b.limit)
	defer cancel()
	got := &start{Side: s.name(), Load: load()}
	before := readTicks()
	defer func() { err = errors.Join(err, s.stop(context.WithoutCancel(ctx))) }()
	l, err := s.launch(ctx)
	if err != nil {
		return nil, err
	}
	seen := make(chan error, 1)
	observing, stopObserving := context.WithCancel(ctx)
	defer stopObserving()
	go func() {
		var err error
		got.Seen, err = b.see(observing, l)
		seen <- err
	}()
	t, err := l.wait(ctx)
	if err != nil {
		stopObserving()
		<-seen //nolint:errcheck // it only says that the observer was stopped
		return nil, err
	}
	if err := <-seen; err != nil {
		return nil, err
	}
	got.Busy = readTicks().busySince(before)
	got.Reported, got.Marks = t.at.Sub(l.t0).Seconds(), t.marks
	for _, what := range observed() {
		at, ok := got.Seen[what]
		if !ok {
			return nil, fmt.Errorf("the observer did not see %s", what)
		}
		got.Ready = max(got.Ready, at)
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(stopDelay):
	}
	return got, nil
}

// see runs the observer in the network namespace of a side and returns the times of its events.
func (b *bench) see(ctx context.Context, l *launch) (map[string]float64, error) {
	pid, err := waitPID(ctx, l.pidFile)
	if err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	in := b.setup.cfg.Inside
	cmd := exec.CommandContext(ctx, "nsenter", "--target", pid, "--user", "--preserve-credentials", "--net", exe, roleObserve,
		"-pki", l.pki, "-node", b.setup.cfg.NodeName, "-since", l.t0.Format(time.RFC3339Nano), "-limit", b.limit.String(),
		"-api", fmt.Sprintf("https://127.0.0.1:%d", in.APIServerPort),
		"-health", fmt.Sprintf("%s=http://127.0.0.1:%d/healthz", seenProxy, in.KubeProxyHealthzPort),
		"-health", fmt.Sprintf("%s=http://127.0.0.1:%d/readyz", seenFlannel, in.FlannelHealthzPort),
		"-health", fmt.Sprintf("%s=https://127.0.0.1:%d/healthz", seenManager, in.ControllerManagerPort),
		"-health", fmt.Sprintf("%s=https://127.0.0.1:%d/healthz", seenScheduler, in.SchedulerPort))
	var complaint strings.Builder
	cmd.Stderr = &complaint
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1") // so that it does not compete for processors
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	seen := map[string]float64{}
	for reports := json.NewDecoder(out); ; {
		var r report
		if err := reports.Decode(&r); err != nil {
			if !errors.Is(err, io.EOF) {
				complaint.WriteString(err.Error())
			}
			break
		}
		seen[r.Seen] = r.At.Sub(l.t0).Seconds()
	}
	if err := cmd.Wait(); err != nil {
		return nil, fmt.Errorf("observer: %w: %s", err, strings.TrimSpace(complaint.String()))
	}
	return seen, nil
}

// waitPID waits for the file to which RootlessKit writes its child's pid.
func waitPID(ctx context.Context, path string) (string, error) {
	var pid string
	err := until(ctx, path, func() error {
		b, err := os.ReadFile(path)
		if pid = strings.TrimSpace(string(b)); err == nil && pid == "" {
			err = errors.New("it is empty")
		}
		return err
	})
	return pid, err
}
