package e2e

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// feed runs a command with the given standard input.
func (n *testNode) feed(limit time.Duration, stdin string, args ...string) (output string, code int) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	cmd := n.command(ctx, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		n.t.Fatalf("rootlessnode %s: %v", strings.Join(args, " "), err)
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

// forwards returns the number of ports that a node forwards.
func (c *joined) forwards(i int) int { return status.CountPorts(c.nodes[i].status().Ports).Forwarded }

// measure fills a column with values of the API server, the first node, and a worker if there is one.
func (c *joined) measure(tab *scaleTable, running int) {
	c.t.Helper()
	c.pass(scaleRest)
	shown := []int{0}
	if running > 1 {
		shown = append(shown, 1)
	}
	var before []usage
	for _, i := range shown {
		before = append(before, c.usage(i))
	}
	calls, began := c.metrics(), time.Now()
	c.pass(scaleSpan)
	minutes := time.Since(began).Minutes()
	now := c.metrics()
	for k, i := range shown {
		c.usage(i).since(before[k], minutes, tab, scaleWho[i])
	}
	now.show(tab, calls, minutes)
	for _, i := range shown {
		c.holds(tab, i, scaleWho[i])
	}
	assert.NilError(c.t, os.WriteFile(os.Getenv(envScale), []byte(tab.markdown()), 0o600)) // the results so far
}

var scaleWho = []string{"first node", "worker"}

// pass waits for a duration.
func (c *joined) pass(d time.Duration) {
	c.t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-c.t.Context().Done():
		c.t.Fatal(c.t.Context().Err())
	case <-timer.C:
	}
}

// sample is one line of the API server's metrics.
type sample struct {
	name, labels string
	value        float64
}

func (s sample) label(name string) string {
	_, rest, _ := strings.Cut(","+s.labels, ","+name+`="`)
	value, _, _ := strings.Cut(rest, `"`)
	return value
}

type samples []sample

var sampleLine = regexp.MustCompile(`^([a-z_]+)(?:\{(.*)\})? ([0-9.e+-]+)$`)

func (c *joined) metrics() samples {
	c.t.Helper()
	var all samples
	for line := range strings.Lines(c.control().kubectl("get", "--raw", "/metrics")) {
		if m := sampleLine.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			if v, err := strconv.ParseFloat(m[3], 64); err == nil {
				all = append(all, sample{m[1], m[2], v})
			}
		}
	}
	assert.Assert(c.t, len(all) > 0, "the API server has no metrics")
	return all
}

// by sums the samples of a name, grouped by key. Samples with an empty key are ignored.
func (s samples) by(name string, key func(sample) string) map[string]float64 {
	sums := map[string]float64{}
	for _, one := range s {
		if k := key(one); one.name == name && k != "" {
			sums[k] += one.value
		}
	}
	return sums
}

func (s samples) one(name string) float64 {
	return s.by(name, func(sample) string { return name })[name]
}

// most lists the largest values.
func most(sums map[string]float64, format string) string {
	const shown = 7
	keys := slices.SortedFunc(maps.Keys(sums), func(a, b string) int { return cmp.Or(cmp.Compare(sums[b], sums[a]), cmp.Compare(a, b)) })
	var parts []string
	for _, k := range keys {
		if len(parts) < shown && sums[k] > 0 {
			parts = append(parts, fmt.Sprintf("%s "+format, k, sums[k]))
		}
	}
	return strings.Join(parts, ", ")
}

func total(sums map[string]float64) (sum float64) {
	for _, v := range sums {
		sum += v
	}
	return sum
}

// show writes the API server's current values, and its rates since before.
func (s samples) show(tab *scaleTable, before samples, minutes float64) {
	watches := s.by("apiserver_longrunning_requests", func(x sample) string {
		if x.label("verb") != "WATCH" {
			return ""
		}
		return x.label("resource")
	})
	tab.set("API server: watches", "%.0f", total(watches))
	tab.set("— the most", "%s", most(watches, "%.0f"))
	asked := func(x sample) string {
		if v := x.label("verb"); v == "WATCH" || v == "CONNECT" {
			return ""
		}
		return x.label("verb") + " " + cmp.Or(x.label("resource"), "(no resource)")
	}
	was, calls := before.by("apiserver_request_total", asked), map[string]float64{}
	for k, v := range s.by("apiserver_request_total", asked) {
		calls[k] = (v - was[k]) / minutes
	}
	tab.set("API server: requests a minute, except watches", "%.0f", total(calls))
	tab.set("— the most often", "%s", most(calls, "%.0f"))
	tab.set("API server: processor seconds a minute", "%.1f", (s.one("process_cpu_seconds_total")-before.one("process_cpu_seconds_total"))/minutes)
	tab.set("API server: resident memory, MB", "%.0f", s.one("process_resident_memory_bytes")/1e6)
	tab.set("API server: goroutines", "%.0f", s.one("go_goroutines"))
	tab.set("datastore: size, MB", "%.1f", s.one("apiserver_storage_size_bytes")/1e6)
}

// usage has the totals of a node: processor time by part, and bytes through its host's interface.
type usage struct {
	seconds  map[string]float64
	in, outs float64
}

func (u usage) since(before usage, minutes float64, tab *scaleTable, label string) {
	spent := map[string]float64{}
	for part, s := range u.seconds {
		spent[part] = (s - before.seconds[part]) / minutes
	}
	tab.set(label+": processor seconds a minute", "%.1f", total(spent))
	tab.set(label+": of these", "%s", most(spent, "%.2f"))
	tab.set(label+": kB a minute from and to other hosts", "%.0f, %.0f", (u.in-before.in)/minutes/1e3, (u.outs-before.outs)/minutes/1e3)
}

const podsPart = "pods"

// parts maps the directories of the node's cgroup to component names. Directories of no component belong to pods.
func (c *joined) parts(i int) map[string]string {
	c.t.Helper()
	root, found := c.nodes[i].status().Cgroup.Path, map[string]string{}
	assert.NilError(c.t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || err == nil && !d.IsDir() {
			return nil // pods come and go
		}
		found[path] = podsPart
		if name, ok := strings.CutPrefix(path, filepath.Join(root, "system")+"/"); ok {
			found[path], _, _ = strings.Cut(name, "/")
		}
		return err
	}))
	return found
}

func (c *joined) usage(i int) usage {
	c.t.Helper()
	u := usage{seconds: map[string]float64{}}
	spent := func(dir string) float64 {
		b, err := os.ReadFile(filepath.Join(dir, "cpu.stat"))
		assert.NilError(c.t, err)
		return number(string(b), "usage_usec") / 1e6
	}
	root := c.nodes[i].status().Cgroup.Path
	components, err := filepath.Glob(filepath.Join(root, "system", "*", "cpu.stat"))
	assert.NilError(c.t, err)
	for _, file := range components {
		dir := filepath.Dir(file)
		u.seconds[filepath.Base(dir)] = spent(dir)
	}
	u.seconds[podsPart] = spent(root) - total(u.seconds)
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", c.hosts[i].pid))
	assert.NilError(c.t, err)
	for line := range strings.Lines(string(b)) {
		if name, counts, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && name == "eth0" {
			f := strings.Fields(counts)
			u.in, _ = strconv.ParseFloat(f[0], 64)
			u.outs, _ = strconv.ParseFloat(f[8], 64)
		}
	}
	return u
}

// number returns the value of a line "NAME VALUE" or "NAME: VALUE kB", or 0 without such a line.
func number(text, name string) float64 {
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) > 1 && strings.TrimSuffix(f[0], ":") == name {
			v, _ := strconv.ParseFloat(f[1], 64)
			return v
		}
	}
	return 0
}

// holds writes the current values of a node.
func (c *joined) holds(tab *scaleTable, i int, label string) {
	c.t.Helper()
	pss, own, processes := 0.0, map[string]float64{}, 0
	for path, part := range c.parts(i) {
		b, _ := os.ReadFile(filepath.Join(path, "cgroup.procs")) // as above
		for _, pid := range strings.Fields(string(b)) {
			rollup, err := os.ReadFile("/proc/" + pid + "/smaps_rollup")
			if err != nil {
				continue
			}
			processes++
			pss += number(string(rollup), "Pss") * 1024 / 1e6
			own[part] += number(string(rollup), "Anonymous") * 1024 / 1e6
		}
	}
	s := c.nodes[i].status()
	ports := status.CountPorts(s.Ports)
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.ParentPID))
	assert.NilError(c.t, err)
	server, err := url.Parse(c.control().status().APIServer)
	assert.NilError(c.t, err)
	tab.set(label+": processes", "%d", processes)
	tab.set(label+": memory of them, proportional, MB", "%.0f", pss)
	tab.set(label+": memory of their own, MB", "%.0f", total(own))
	tab.set(label+": of that", "%s", most(own, "%.0f"))
	tab.set(label+": descriptors of the parent", "%d", len(fds))
	tab.set(label+": forwarded ports, and waiting ones", "%d, %d", ports.Forwarded, ports.Waiting)
	tab.set(label+": connections to the API server's port", "%d", c.established(s.ChildPID, server.Port(), i == 0))
	tab.set(label+": flannel.1: FDB, neighbours, routes", "%d, %d, %d",
		c.count(i, " dst ", "bridge", "fdb", "show", "dev", "flannel.1"),
		c.count(i, "", "ip", "neighbour", "show", "dev", "flannel.1"), c.count(i, "", "ip", "route", "show", "dev", "flannel.1"))
}

// established counts the connections in a process's network namespace to the port. With serves, the port is the local one.
func (c *joined) established(pid int, port string, serves bool) int {
	c.t.Helper()
	n, err := strconv.Atoi(port)
	assert.NilError(c.t, err)
	want, count := fmt.Sprintf(":%04X", n), 0
	const stateEstablished = "01" // include/net/tcp_states.h
	for _, file := range []string{"tcp", "tcp6"} {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, file)) // tcp6 may not be there
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			if len(f) < 4 || f[3] != stateEstablished {
				continue
			}
			end := f[2]
			if serves {
				end = f[1]
			}
			if strings.HasSuffix(end, want) {
				count++
			}
		}
	}
	return count
}

// count runs a program of the host inside the node and counts the lines that contain text.
func (c *joined) count(i int, text, program string, args ...string) int {
	c.t.Helper()
	path, err := exec.LookPath(program)
	assert.NilError(c.t, err)
	lines := 0
	for line := range strings.Lines(c.nodes[i].run(podLimit, append([]string{"exec", "--", path}, args...)...)) {
		if strings.Contains(line, text) {
			lines++
		}
	}
	return lines
}
