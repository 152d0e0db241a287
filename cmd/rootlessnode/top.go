package main

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

const (
	topInterval = 2 * time.Second
	// minTopInterval is the minimum, because reading takes CPU time itself and /proc counts CPU time in hundredths of a second.
	minTopInterval = 200 * time.Millisecond
	// firstInterval is the time until the first view, which needs two measurements.
	firstInterval = 500 * time.Millisecond
)

type topNode interface {
	imageNode
	statusNode
}

func newTop(a *app) *cobra.Command {
	var interval time.Duration
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the resource usage of the node, its components and its pods",
		Long: `Show CPU, memory, I/O and tasks of the node, of each component and of each pod, read
from their cgroups. On a terminal the table is refreshed until you press q or Ctrl-C;
otherwise it is printed once, after one interval. Values marked with ~ are sums over
the processes, because the cgroup controller is missing.`,
		RunE: withNode(a, func(ctx context.Context, n topNode, _ []string) error {
			if interval < minTopInterval {
				return errdefs.Config("interval %s: must be at least %s", interval, minTopInterval).Hint(a.command("top --interval 2s"))
			}
			ctx, stop := signal.NotifyContext(ctx, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
			defer stop()
			return top(ctx, a, n, interval)
		}),
	}
	cmd.Flags().DurationVarP(&interval, "interval", "n", topInterval, "time between two measurements")
	return a.withOutput(cmd)
}

// topRow is the usage of one part of the node. Rates are averages over the interval. nil means unknown.
type topRow struct {
	// Name is the name of a component or pod; empty for an unknown pod. Namespace and UID are set for pods only.
	Name      string `json:"name,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	UID       string `json:"uid,omitempty"`
	// CPU is in CPUs.
	CPU            *float64 `json:"cpu,omitempty"`
	ReadPerSecond  *float64 `json:"ioReadBytesPerSecond,omitempty"`
	WritePerSecond *float64 `json:"ioWriteBytesPerSecond,omitempty"`
	cgroupv2.Usage          // since the cgroup of the part was created
	key            string   // identifies the part in two measurements
	containers     []string // of a pod
}

// topSnapshot is the object that `top -o json` prints.
type topSnapshot struct {
	Time time.Time `json:"time"`
	// Interval in seconds.
	Interval   float64       `json:"interval"`
	Ceiling    layout.Limits `json:"ceiling,omitzero"`
	Node       topRow        `json:"node"`
	Components []topRow      `json:"components"`
	Pods       []topRow      `json:"pods"`
}

// topReader measures one node.
type topReader struct {
	a     *app
	n     topNode
	s     *status.Status
	pods  podNames
	last  cgroupv2.Survey
	since time.Time
}

func top(ctx context.Context, a *app, n topNode, interval time.Duration) error {
	s, err := n.Status(ctx)
	if err != nil {
		return err
	}
	if s.Cgroup.Path == "" {
		return a.hintNotRunning(errdefs.NotRunning("it has no cgroup"))
	}
	r := &topReader{a: a, n: n, s: s, pods: podNames{known: map[string]podName{}}}
	if err := r.begin(); err != nil {
		return r.notRunning(err)
	}
	if a.output != "json" && isTerminal(a.stdout) {
		return r.notRunning(topLive(ctx, a, r, interval))
	}
	select {
	case <-ctx.Done():
		return exitCode(errdefs.ExitOther)
	case <-time.After(interval):
	}
	p, err := r.measure(ctx)
	if err != nil {
		return r.notRunning(err)
	}
	a.show(p, strings.Join(renderTop(p, a.styleOf(a.stdout)), "\n")+"\n")
	return nil
}

// notRunning converts err to class ErrNotRunning if the cgroup of the node no longer exists.
func (r *topReader) notRunning(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return r.a.hintNotRunning(errdefs.NotRunning("its cgroup no longer exists"))
	}
	return err
}

func (r *topReader) begin() (err error) {
	r.last, err = cgroupv2.ReadSurvey(r.s.Cgroup.Path)
	r.since = r.a.now()
	return err
}

// measure returns the usage since the last measurement.
func (r *topReader) measure(ctx context.Context) (topSnapshot, error) {
	survey, err := cgroupv2.ReadSurvey(r.s.Cgroup.Path)
	if err != nil {
		return topSnapshot{}, err
	}
	now := r.a.now()
	r.pods.learn(ctx, r.n, survey.Pods)
	p := newTopSnapshot(survey, r.last, now.Sub(r.since), r.pods.known)
	p.Time, p.Ceiling = now, r.s.Cgroup.Ceiling
	r.last, r.since = survey, now
	return p, nil
}

// newTopSnapshot compares two surveys. New parts have no rates yet.
func newTopSnapshot(now, before cgroupv2.Survey, took time.Duration, names map[string]podName) topSnapshot {
	p := topSnapshot{Interval: took.Seconds(), Components: []topRow{}, Pods: []topRow{}}
	old := map[string]cgroupv2.Usage{"": before.Node}
	for name, u := range before.Components {
		old["component "+name] = u
	}
	for _, r := range podRows(before.Pods, names) {
		old[r.key] = r.Usage
	}
	p.Node = rates(topRow{Usage: now.Node}, old, took)
	for name, u := range now.Components {
		p.Components = append(p.Components, rates(topRow{Name: name, key: "component " + name, Usage: u}, old, took))
	}
	for _, r := range podRows(now.Pods, names) {
		p.Pods = append(p.Pods, rates(r, old, took))
	}
	for _, rows := range [][]topRow{p.Components, p.Pods} {
		slices.SortFunc(rows, func(x, y topRow) int {
			return cmp.Or(cmp.Compare(orZero(y.CPU), orZero(x.CPU)), strings.Compare(x.Namespace+"/"+x.Name+x.key, y.Namespace+"/"+y.Name+y.key))
		})
	}
	return p
}

// podRows returns one row per pod. The containers of a pod without its own cgroup are added up.
func podRows(pods []cgroupv2.PodUsage, names map[string]podName) []topRow {
	var rows []topRow
	at := map[string]int{}
	for _, p := range pods {
		var n podName
		for _, c := range p.Containers {
			if known, ok := names[c]; ok && known.UID != "" {
				n = known
			}
		}
		if p.UID != "" {
			n.UID = p.UID
		}
		row := topRow{Name: n.Name, Namespace: n.Namespace, UID: n.UID, Usage: p.Usage, containers: p.Containers, key: "pod " + n.UID}
		if n.UID == "" {
			row.key = "container " + strings.Join(p.Containers, " ")
		}
		if i, ok := at[row.key]; ok {
			rows[i].Usage = rows[i].Add(p.Usage)
			rows[i].containers = append(rows[i].containers, p.Containers...)
			continue
		}
		at[row.key] = len(rows)
		rows = append(rows, row)
	}
	return rows
}

func rates(r topRow, old map[string]cgroupv2.Usage, took time.Duration) topRow {
	before, ok := old[r.key]
	if !ok || took <= 0 {
		return r
	}
	rate := func(now, before *uint64, unit float64) *float64 {
		if now == nil || before == nil {
			return nil
		}
		// now is less than before if processes of the sum have ended.
		v := float64(*now-min(*before, *now)) / unit / took.Seconds()
		return &v
	}
	r.CPU = rate(r.CPUUsec, before.CPUUsec, 1e6)
	r.ReadPerSecond = rate(r.IOReadBytes, before.IOReadBytes, 1)
	r.WritePerSecond = rate(r.IOWriteBytes, before.IOWriteBytes, 1)
	return r
}

func orZero(v *float64) float64 {
	if v == nil {
		return 0
	}
	return *v
}
