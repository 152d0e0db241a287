package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os/signal"
	"slices"
	"strconv"
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

// renderTop is the table, a line an element.
func renderTop(p topPicture, st style) []string {
	rows := [][]string{{"PART", "CPU", "MEMORY", "WORKING SET", "READ/S", "WRITE/S", "TASKS"}}
	add := func(name string, r topRow) {
		mark := func(text, resource string) string {
			if text != "" && slices.Contains(r.FromProc, resource) {
				return "~" + text
			}
			return text
		}
		rows = append(rows, []string{
			name, mark(cpuText(r.CPU), "cpu"), mark(optional(r.MemoryBytes, bytesText), "memory"),
			mark(optional(r.WorkingSetBytes, bytesText), "memory"), rateText(r.ReadPerSecond), rateText(r.WritePerSecond),
			mark(optional(r.Pids, func(n uint64) string { return strconv.FormatUint(n, 10) }), "pids"),
		})
	}
	add("node", p.Node)
	for _, r := range p.Components {
		add("  "+r.Name, r)
	}
	if len(p.Pods) > 0 {
		rows = append(rows, []string{"pods"})
	}
	for _, r := range p.Pods {
		add("  "+podText(r), r)
	}
	var lines []string
	if text := limitsText(p.Ceiling); text != "" {
		lines = append(lines, "the node may use "+text)
	}
	for line := range strings.Lines(table(rows)) {
		lines = append(lines, strings.TrimSuffix(line, "\n"))
	}
	if len(p.Node.FromProc) > 0 {
		lines = append(lines, "~ summed over the processes, for want of the controllers: "+strings.Join(p.Node.FromProc, " "))
	}
	for i := range lines {
		lines[i] = st.cut(lines[i], st.width)
	}
	return lines
}

func podText(r topRow) string {
	switch {
	case r.Name != "":
		return r.Namespace + "/" + r.Name
	case r.UID != "":
		return "uid " + r.UID
	}
	return "container " + shortID(strings.Join(r.containers, " "))
}

func shortID(id string) string {
	const shown = 12
	return id[:min(len(id), shown)]
}

func cpuText(v *float64) string {
	if v == nil {
		return ""
	}
	return strconv.FormatFloat(*v, 'f', 3, 64)
}

func optional(n *uint64, text func(uint64) string) string {
	if n == nil {
		return ""
	}
	return text(*n)
}

func rateText(v *float64) string {
	if v == nil {
		return ""
	}
	return bytesText(uint64(*v))
}

// topLive draws the table over itself until q, an interrupt or the node's end.
func (a *app) topLive(ctx context.Context, r *topReader, interval time.Duration) error {
	keys := openKeys(a.stdin)
	defer keys.close()
	for drawn, wait := 0, min(firstInterval, interval); ; wait = interval {
		if quit, err := keys.wait(ctx, wait); quit || err != nil {
			return err
		}
		p, err := r.measure(ctx)
		if err != nil {
			return err
		}
		lines := fitHeight(renderTop(p, a.styleOf(a.stdout)), terminalHeight(a.stdout))
		drawOver(a.out, drawn, lines)
		drawn = len(lines)
	}
}

// drawOver replaces the lines drawn before (ECMA-48: CUU, EL, ED).
func drawOver(w io.Writer, drawn int, lines []string) {
	var b strings.Builder
	if drawn > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", drawn)
	}
	for _, l := range lines {
		b.WriteString("\r\x1b[2K" + l + "\n")
	}
	b.WriteString("\x1b[J")
	_, _ = io.WriteString(w, b.String())
}

// fitHeight leaves out what a terminal of so many lines cannot show: lines that scrolled away cannot be drawn over.
func fitHeight(lines []string, height int) []string {
	if height <= 2 || len(lines) < height {
		return lines
	}
	kept := height - 2 // one for what is left out, one for the cursor
	return append(slices.Clone(lines[:kept]), fmt.Sprintf("%d more lines", len(lines)-kept))
}

// podName is whose a container is.
type podName struct {
	Name, Namespace, UID string
}

// podNames remembers them by the containers' ids.
type podNames struct {
	known map[string]podName
	// failed: the runtime does not answer, and is not asked in each round.
	failed int
}

// patience is for how many rounds a runtime that did not answer is left alone.
const patience = 5

// learn asks the node's runtime for the pods of containers that are new. It needs no API server. Containers that the runtime
// does not know (they are gone) are remembered as nobody's.
func (p *podNames) learn(ctx context.Context, n handle, pods []cgroupv2.PodUsage) {
	var unknown []string
	for _, pod := range pods {
		for _, id := range pod.Containers {
			if _, ok := p.known[id]; !ok {
				unknown = append(unknown, id)
			}
		}
	}
	if len(unknown) == 0 {
		return
	}
	if p.failed > 0 {
		p.failed--
		return
	}
	// One program for all of them; each starts in some 20 ms.
	const script = `for id do ctr --namespace k8s.io containers info "$id" 2>/dev/null; done; true`
	text, code, err := output(ctx, n, append([]string{"sh", "-c", script, "sh"}, unknown...), nil)
	if err != nil || code != 0 {
		p.failed = patience
		return
	}
	for _, id := range unknown {
		p.known[id] = podName{}
	}
	for id, name := range parseContainers(text) {
		p.known[id] = name
	}
}

// parseContainers reads the documents of `ctr containers info`. The kubelet labels sandboxes and containers alike.
func parseContainers(text string) map[string]podName {
	out := map[string]podName{}
	for d := json.NewDecoder(strings.NewReader(text)); ; {
		var c struct {
			ID     string
			Labels map[string]string
		}
		if d.Decode(&c) != nil {
			return out // the end, or what is no document
		}
		const prefix = "io.kubernetes.pod."
		out[c.ID] = podName{c.Labels[prefix+"name"], c.Labels[prefix+"namespace"], c.Labels[prefix+"uid"]}
	}
}
