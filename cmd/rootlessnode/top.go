package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

const (
	topInterval = 2 * time.Second
	// minTopInterval: what is read costs CPU time itself, and is counted in hundredths of a second where /proc tells.
	minTopInterval = 200 * time.Millisecond
	// firstInterval is until something is shown: rates take two measurements.
	firstInterval = 500 * time.Millisecond
)

func newTop(a *app) *cobra.Command {
	var interval time.Duration
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show what the node, its components and its pods use",
		Long: `Show CPU, memory, I/O and tasks of the node, of each component and of each pod,
from the files of their cgroups. On a terminal it goes on until q or Ctrl-C;
elsewhere it measures once, for the interval. Figures marked with ~ come from
the processes, for want of the cgroup controller.`,
		Args: arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if interval < minTopInterval {
				return errdefs.WithHint(errdefs.Class(errdefs.ErrConfig, fmt.Errorf("interval %s: want at least %s", interval, minTopInterval)),
					"rootlessnode top --interval 2s")
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
			defer stop()
			return a.top(ctx, interval)
		},
	}
	cmd.Flags().DurationVarP(&interval, "interval", "n", topInterval, "time between two measurements")
	a.outputFlag(cmd)
	return cmd
}

// topRow is what one part of the node uses. Rates are of the interval. What is nil cannot be told.
type topRow struct {
	// Name of a component, or of a pod with Namespace and UID; the name of a pod that is not known is empty.
	Name      string `json:"name,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	UID       string `json:"uid,omitempty"`
	// CPU is in CPUs.
	CPU            *float64 `json:"cpu,omitempty"`
	ReadPerSecond  *float64 `json:"ioReadBytesPerSecond,omitempty"`
	WritePerSecond *float64 `json:"ioWriteBytesPerSecond,omitempty"`
	cgroupv2.Usage          // since the part's cgroup exists
	key            string   // tells the part in two measurements
	containers     []string // of a pod
}

// topPicture is what `top -o json` prints.
type topPicture struct {
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
	n     handle
	s     *status.Status
	pods  podNames
	last  cgroupv2.Survey
	since time.Time
}

func (a *app) top(ctx context.Context, interval time.Duration) error {
	n, err := a.attached()
	if err != nil {
		return err
	}
	s, err := n.Status(ctx)
	if err != nil {
		return err
	}
	if s.Cgroup.Path == "" {
		return a.hintNotRunning(errdefs.Class(errdefs.ErrNotRunning, errors.New("it uses nothing")))
	}
	r := &topReader{a: a, n: n, s: s, pods: podNames{known: map[string]podName{}}}
	if err := r.begin(); err != nil {
		return r.gone(err)
	}
	if a.output != "json" && isTerminal(a.stdout) {
		return r.gone(a.topLive(ctx, r, interval))
	}
	select {
	case <-ctx.Done():
		return exitCode(errdefs.ExitOther)
	case <-time.After(interval):
	}
	p, err := r.measure(ctx)
	if err != nil {
		return r.gone(err)
	}
	if a.output == "json" {
		a.printJSON(a.out, p)
		return nil
	}
	a.printf("%s", strings.Join(renderTop(p, a.styleOf(a.stdout)), "\n")+"\n")
	return nil
}

// gone says that the node ended meanwhile.
func (r *topReader) gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return r.a.hintNotRunning(errdefs.Class(errdefs.ErrNotRunning, errors.New("its cgroup is gone")))
	}
	return err
}

const procDir = "/proc"

func (r *topReader) begin() (err error) {
	r.last, err = cgroupv2.ReadSurvey(r.s.Cgroup.Path, procDir)
	r.since = r.a.now()
	return err
}

// measure returns what was used since the last measurement.
func (r *topReader) measure(ctx context.Context) (topPicture, error) {
	survey, err := cgroupv2.ReadSurvey(r.s.Cgroup.Path, procDir)
	if err != nil {
		return topPicture{}, err
	}
	now := r.a.now()
	r.pods.learn(ctx, r.n, survey.Pods)
	p := picture(survey, r.last, now.Sub(r.since), r.pods.known)
	p.Time, p.Ceiling = now, r.s.Cgroup.Ceiling
	r.last, r.since = survey, now
	return p, nil
}

// picture compares two surveys. Parts that are new have no rates yet.
func picture(now, before cgroupv2.Survey, took time.Duration, names map[string]podName) topPicture {
	p := topPicture{Interval: took.Seconds(), Components: []topRow{}, Pods: []topRow{}}
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
			if c := orZero(y.CPU) - orZero(x.CPU); c != 0 {
				if c > 0 {
					return 1
				}
				return -1
			}
			return strings.Compare(x.Namespace+"/"+x.Name+x.key, y.Namespace+"/"+y.Name+y.key)
		})
	}
	return p
}

func orZero(v *float64) float64 {
	if v == nil {
		return 0
	}
	return *v
}

// podRows puts the containers of a pod together where the pod has no cgroup of its own.
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
		// Less than before: processes that were summed have ended.
		v := float64(*now-min(*before, *now)) / unit / took.Seconds()
		return &v
	}
	r.CPU = rate(r.CPUUsec, before.CPUUsec, 1e6)
	r.ReadPerSecond = rate(r.IOReadBytes, before.IOReadBytes, 1)
	r.WritePerSecond = rate(r.IOWriteBytes, before.IOWriteBytes, 1)
	return r
}
