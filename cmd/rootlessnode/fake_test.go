package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/datadir"
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/nodeexec"
	"github.com/rootlessnode/rootlessnode/internal/preflight"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/node"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// t0 is the start time in these tests.
var t0 = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func at(seconds float64) time.Time { return t0.Add(time.Duration(seconds * float64(time.Second))) }

// fakeNode returns the values of its fields and records the calls.
type fakeNode struct {
	mu       sync.Mutex
	cfg      *config.NodeConfig
	dir      string
	statuses []status.Status
	events   []status.Event
	ports    []status.Port
	findings []preflight.Finding
	// fails holds the error that a method returns, by the name of the method.
	fails map[string]error
	calls []string
	exec  func(nodeexec.Request) (int, error)
	// token and tokens are return values; options are those of the last newNode.
	token   *node.JoinToken
	tokens  []kubeapi.BootstrapToken
	options node.Options
	// serve is RunForeground.
	serve func()
	// removed is the return value of DeleteData.
	removed *datadir.Result
}

func (f *fakeNode) call(name string) error {
	f.mu.Lock() // down --all stops several nodes at the same time
	defer f.mu.Unlock()
	f.calls = append(f.calls, name)
	return f.fails[name]
}

func (f *fakeNode) Check(context.Context) ([]preflight.Finding, error) {
	return f.findings, f.call("check")
}
func (f *fakeNode) Start(context.Context) error { return f.call("start") }
func (f *fakeNode) RunForeground(context.Context) error {
	if f.serve != nil {
		f.serve()
		return nil
	}
	return f.call("foreground")
}
func (f *fakeNode) WaitFor(_ context.Context, m status.Milestone, progress func(status.Status)) error {
	for _, s := range f.statuses {
		progress(s)
	}
	return f.call("wait " + string(m))
}

func (f *fakeNode) Status(context.Context) (*status.Status, error) {
	if len(f.statuses) == 0 {
		return &status.Status{Name: f.cfg.Name, State: status.NodeStopped}, f.call("status")
	}
	return &f.statuses[len(f.statuses)-1], f.call("status")
}

func (f *fakeNode) Events(_ context.Context, _ bool, fn func(status.Event) error) error {
	for _, e := range f.events {
		if err := fn(e); err != nil {
			return err
		}
	}
	return f.call("events")
}
func (f *fakeNode) Stop(context.Context) error { return f.call("stop") }

func (f *fakeNode) WaitCleaned(context.Context) error { return f.call("wait-cleaned") }
func (f *fakeNode) AddForward(_ context.Context, s string) ([]status.Port, error) {
	return f.ports, f.call("add " + s)
}
func (f *fakeNode) RemoveForward(_ context.Context, s string) error { return f.call("remove " + s) }
func (f *fakeNode) WatchStatus(_ context.Context, fn func(*status.Status) error) error {
	for i := range f.statuses {
		if err := fn(&f.statuses[i]); err != nil {
			return err
		}
	}
	return f.call("watch")
}
func (f *fakeNode) DeleteData(context.Context) (*datadir.Result, error) {
	return f.removed, f.call("delete")
}
func (f *fakeNode) Exec(_ context.Context, req nodeexec.Request) (int, error) {
	if f.exec != nil {
		return f.exec(req)
	}
	return 0, f.call("exec " + strings.Join(req.Argv, " "))
}
func (f *fakeNode) Snapshots() node.Snapshots {
	return node.Snapshots{Runtime: layout.Runtime{Dir: f.dir + "/run"}, Data: f.Data(), Name: "default"}
}
func (f *fakeNode) Runtime() layout.Runtime    { return layout.Runtime{Dir: f.dir} }
func (f *fakeNode) Data() layout.Data          { return layout.NewData(f.dir) }
func (f *fakeNode) Config() *config.NodeConfig { return f.cfg }
func (f *fakeNode) Kubeconfig() string         { return f.Data().AdminKubeconfig() }
func (f *fakeNode) ComponentPath(name string) (string, error) {
	return "/components/" + name, f.call("component")
}

func (f *fakeNode) CreateJoinToken(_ context.Context, o node.JoinTokenOptions) (*node.JoinToken, error) {
	return f.token, f.call(fmt.Sprintf("create %s %q %q %t", o.TTL, o.Description, o.NodeName, o.Reusable))
}
func (f *fakeNode) JoinTokens(context.Context) ([]kubeapi.BootstrapToken, error) {
	return f.tokens, f.call("list")
}
func (f *fakeNode) DeleteJoinToken(_ context.Context, id string) error { return f.call("delete " + id) }

// fakeKubeconfig is the kubeconfig of the account. It returns the values of its fields and records the calls.
type fakeKubeconfig struct {
	mu      sync.Mutex
	path    string
	changed []string
	err     error
	calls   []string
	merged  func()
}

func (f *fakeKubeconfig) Merge() (context, path string, err error) {
	f.calls = append(f.calls, "merge")
	if f.merged != nil {
		f.merged()
	}
	return "rootlessnode-default", f.path, f.err
}

func (f *fakeKubeconfig) Unmerge() ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, "unmerge")
	return f.changed, f.err
}

// cli runs command lines with a fake node.
type cli struct {
	*app
	node     *fakeNode
	out, err bytes.Buffer
	replaced []string
	joined   config.Join // the cluster that the running node has joined
	last     *config.Settings
	known    []string // warnings of the last start
	// reloaded are the arguments of the last reload, and restarted is its result.
	reloaded  *node.ReloadOptions
	restarted []string
	env       map[string]string
	// executed are the executed programs. answers and failures are their outputs and errors by their second argument.
	executed []string
	// kubeconfig is the kubeconfig of the account.
	kubeconfig fakeKubeconfig
	answers    map[string]string
	failures   map[string]error
}

func newCLI(t *testing.T) *cli {
	t.Helper()
	dir := t.TempDir()
	c := &cli{
		node: &fakeNode{cfg: config.Default(), dir: dir, fails: map[string]error{}, removed: &datadir.Result{Dir: dir}}, env: map[string]string{},
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	assert.NilError(t, err)
	t.Cleanup(func() { _ = null.Close() })
	open := func(cfg *config.NodeConfig) (handle, error) {
		if err := cfg.Validate(); err != nil && strings.ContainsRune(cfg.Name, '/') {
			return nil, err
		}
		c.node.cfg = cfg
		return c.node, nil
	}
	c.app = &app{
		stdin: null, stdout: null, stderr: null, out: &c.out, err: &c.err,
		env: func(k string) string { return c.env[k] }, uid: 1000, inUserNS: func() bool { return false }, now: func() time.Time { return at(10) },
		unsetenv: func(k string) { delete(c.env, k) },
		newNode: func(cfg *config.NodeConfig, o node.Options) (handle, error) {
			c.node.options = o
			return open(cfg)
		},
		execute: func(_ context.Context, path string, args []string, stdout io.Writer) error {
			c.executed = append(c.executed, strings.Join(append([]string{path}, args...), " "))
			_, err := io.WriteString(stdout, c.answers[args[1]])
			return errors.Join(err, c.failures[args[1]])
		},
		attach: func(name string, _ node.Options) (handle, error) {
			cfg := config.Default()
			cfg.Name, cfg.NodeName, cfg.Join = name, "devbox", c.joined
			cfg.CRI = c.node.cfg.CRI
			return open(cfg)
		},
		lastSettings: func(string, string) *config.Settings { return c.last },
		requested: func(name, _ string) *config.NodeConfig {
			if c.last == nil {
				return nil
			}
			cfg, err := c.last.Build(name)
			assert.NilError(t, err)
			return cfg
		},
		newWarnings: func(_ handle, all []string) ([]string, error) {
			return slices.DeleteFunc(slices.Clone(all), func(w string) bool { return slices.Contains(c.known, w) }), nil
		},
		beginStop: func(_ context.Context, _ handle, limit time.Duration) error {
			return c.node.call("begin stop " + limit.String())
		},
		reload: func(_ context.Context, _ handle, o node.ReloadOptions) ([]string, error) {
			c.reloaded = &o
			return c.restarted, c.node.call("reload")
		},
		restart:        func(_ context.Context, _ handle, name string) error { return c.node.call("restart " + name) },
		userSystemctl:  func(context.Context, ...string) (string, error) { return "inactive\n", nil },
		userKubeconfig: func(n handle) userKubeconfig { return &c.kubeconfig },
		replace: func(path string, argv, env []string) error {
			c.replaced = append([]string{path}, argv...)
			for _, kv := range env {
				if strings.HasPrefix(kv, "KUBECONFIG=") {
					c.replaced = append(c.replaced, kv)
				}
			}
			return nil
		},
	}
	return c
}

func (c *cli) run(args ...string) int { return run(c.app, args) }

// upStatuses returns the statuses that an `up` shows, in order.
func upStatuses() []status.Status {
	base := status.Status{
		Name: "default", NodeName: "devbox", State: status.NodeStarting, StartedAt: t0, Since: t0, Version: "v0.1.0", Kubernetes: "v1.37.2",
		Conditions: []status.Condition{{Type: status.ConditionNodeReady, Message: "not registered"}},
		Components: []status.Component{
			{Name: "containerd", Log: "/data/log/containerd.log", State: status.Starting, Since: at(0.4)},
			{Name: "kubelet", Log: "/data/log/kubelet.log", State: status.Waiting, Since: at(0.4), WaitingFor: []string{"containerd"}},
		},
	}
	second := base
	second.Components = []status.Component{
		{Name: "containerd", Log: "/data/log/containerd.log", State: status.Ready, Since: at(0.9), PID: 12},
		{Name: "kubelet", Log: "/data/log/kubelet.log", State: status.Backoff, Since: at(1.2), Reason: "exited with code 1:\n  no such flag", Restarts: 1},
	}
	second.Timings = map[string]float64{"containerd": 0.9}
	third := base
	third.Components = []status.Component{
		{Name: "containerd", Log: "/data/log/containerd.log", State: status.Ready, Since: at(0.9), PID: 12},
		{Name: "kubelet", Log: "/data/log/kubelet.log", State: status.Ready, Since: at(4), PID: 15, Restarts: 1},
	}
	third.Timings = map[string]float64{"containerd": 0.9, "kubelet": 4}
	third.Reason = "the Node object is not Ready: CNI is not there"
	last := third
	last.State, last.Reason, last.Since = status.NodeReady, "", at(5.2)
	last.Timings = map[string]float64{"containerd": 0.9, "kubelet": 4, status.NodeReadyTiming: 5.2}
	last.Conditions = []status.Condition{{Type: status.ConditionNodeReady, OK: true, Message: "kubelet is posting ready status"}}
	last.APIServer = "https://127.0.0.1:6443"
	return []status.Status{base, second, third, last}
}

// full returns a status in which every part is set.
func full() status.Status {
	s := upStatuses()[3]
	s.State, s.Reason = status.NodeDegraded, "port 127.0.0.1:80/tcp is not forwarded: permission denied"
	s.Kubeconfig, s.DataDir = "/home/u/data/kubeconfig", "/home/u/data"
	s.Network = status.Network{Driver: "slirp4netns", Interface: "tap0", Address: "10.0.2.100", MTU: 1500}
	s.Cgroup = status.Cgroup{Path: "/user.slice/rootlessnode-default", Controllers: []string{"cpu", "memory", "pids"}, Unenforced: []string{"io"},
		Ceiling: layout.Limits{CPUMilli: 1500, MemoryBytes: 4 << 30, Pids: 4096}, UnenforcedSettings: []string{"resources.memoryHighPercent"}}
	s.Conditions = append(s.Conditions,
		status.Condition{Type: status.ConditionDatastore, OK: true, Warning: true, Reason: "NearlyFull", Message: "72 % of the quota is used"},
		status.Condition{Type: status.ConditionClusterDNS, Reason: "PodsNotReady", Message: "pod coredns-1:\nCrashLoopBackOff",
			Hint: "show the logs of the node: kubelet", Steps: errdefs.Do(errdefs.ShowLogs, "kubelet")},
		status.Condition{Type: status.ConditionDisk, Pending: true, Reason: "Starting"})
	s.Ports = []status.Port{
		{HostIP: "127.0.0.1", HostPort: 6443, Proto: "tcp", NodePort: 6443, Owner: "api", State: status.PortForwarded},
		{HostIP: "127.0.0.1", HostPort: 80, Proto: "tcp", NodePort: 80, Owner: "default/web", State: status.PortFailed, Error: "permission denied", Hint: "sysctl -w net.ipv4.ip_unprivileged_port_start=80"},
	}
	s.Mounts = &status.Mounts{Shared: true, Reasons: []string{"1: the host's root is private"}, Hint: "mount --make-rshared /"}
	s.Warnings = []string{"limits of io are not enforced"}
	return s
}

// fault returns an error with class, hints and log.
func fault() error {
	err := errors.Join(errors.New("kubelet: it ended 5 times in a row"), errors.New("flannel: no lease"))
	err = errdefs.Class(errdefs.ErrComponent, err)
	err = errdefs.WithHint(err, "rootlessnode down\nrootlessnode up")
	err = errdefs.WithHint(err, "free some disk")
	return errdefs.WithLog(err, "kubelet", "/data/log/kubelet.log", []string{"E0102 one", "E0102 two"})
}
