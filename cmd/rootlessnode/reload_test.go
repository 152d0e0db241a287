package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
	"gotest.tools/v3/golden"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// runningCLI returns a CLI for a running node that was started with --set api.port=7444.
func runningCLI(t *testing.T) *cli {
	t.Helper()
	c := newCLI(t)
	c.node.statuses = []status.Status{upStatuses()[3]}
	c.node.statuses[0].ParentPID = 7
	c.last = lastSettings(config.Setting{Path: "api.port", Value: "7444"})
	return c
}

func TestReload(t *testing.T) {
	t.Parallel()
	c := runningCLI(t)
	assert.Equal(t, c.run("reload"), 0, c.err.String())
	assert.Equal(t, c.out.String(), "the configuration has not changed\n")

	c = runningCLI(t)
	c.restarted = []string{"kubelet"}
	assert.Equal(t, c.run("reload", "--set", "kubelet.maxPods=50"), 0, c.err.String())
	assert.Equal(t, c.out.String(), "applied: kubelet.maxPods\nrestarted: kubelet\n")
	assert.DeepEqual(t, c.reloaded.Fields, []string{"kubelet.maxPods"})
	assert.Equal(t, len(c.reloaded.Settings.Fields), 2, "the port is remembered as well")

	c = runningCLI(t)
	assert.Equal(t, c.run("reload", "--set", "kubelet.maxPods=50", "--set", "network.mtu=9000"), 1)
	golden.Assert(t, c.out.String()+c.err.String(), "reload-partly.txt")
	c.out.Reset()
	assert.Equal(t, c.run("reload", "--set", "network.mtu=9000", "-o", "json"), 1)
	var got reloadResult
	assert.NilError(t, json.Unmarshal(c.out.Bytes(), &got))
	assert.DeepEqual(t, got.NextStart, []string{"network.mtu"})

	c = newCLI(t)
	assert.Equal(t, c.run("reload"), 1)
	assert.Check(t, is.Contains(c.err.String(), `error: node "default" is not running`))
	c = runningCLI(t)
	assert.Equal(t, c.run("reload", "--set", "kubelet.maxPods=x"), errdefs.ExitConfig)
	assert.Assert(t, c.reloaded == nil)
}

func TestRestart(t *testing.T) {
	t.Parallel()
	c := runningCLI(t)
	assert.Equal(t, c.run("restart", "kubelet"), 0, c.err.String())
	assert.Equal(t, c.out.String(), "kubelet was restarted and is ready\n")
	assert.DeepEqual(t, c.node.calls, []string{"status", "restart kubelet"})
	assert.Equal(t, c.run("restart", "kubelet", "--wait", "node"), errdefs.ExitConfig)

	// A stopped node is started, with the settings of the last start.
	c = newCLI(t)
	c.node.statuses, c.last = upStatuses(), lastSettings(config.Setting{Path: "api.port", Value: "7444"})
	c.node.statuses[3].State = status.NodeStopped
	assert.Equal(t, c.run("restart"), 0, c.err.String())
	assert.DeepEqual(t, c.node.calls, []string{"status", "status", "start", "wait pods"})
	assert.Equal(t, c.node.cfg.API.Port, 7444)

	// A service is restarted by systemd, which watches it.
	c = runningCLI(t)
	var calls []string
	c.userSystemctl = func(_ context.Context, args ...string) (string, error) {
		calls = append(calls, strings.Join(args, " "))
		return "active\n", nil
	}
	assert.Equal(t, c.run("restart"), 0, c.err.String())
	assert.Check(t, is.Contains(calls, "restart rootlessnode@default.service"))
	assert.Equal(t, len(c.node.calls), 0)
}
