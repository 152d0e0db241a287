package main

import (
	"encoding/json"
	"errors"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
	"gotest.tools/v3/golden"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/node"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// account replaces the node of c by the nodes of an account: a ready one, a stopped one, and one whose registry entry is damaged.
func (c *cli) account() map[string]*fakeNode {
	ready := upStatuses()[3]
	ready.Name, ready.DataDir = "web", "/home/u/data/web"
	nodes := map[string]*fakeNode{"web": {statuses: []status.Status{ready}}, "old": {}}
	c.names = func() ([]string, error) { return []string{"broken", "old", "web"}, nil }
	c.attach = func(name string, _ node.Options) (handle, error) {
		n := nodes[name]
		if n == nil {
			return nil, errdefs.Config("read the registry entry: damaged")
		}
		n.cfg = config.Default()
		n.cfg.Name = name
		return n, nil
	}
	return nodes
}

func TestList(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.account()
	assert.Equal(t, c.run("list"), 0, c.err.String())
	golden.Assert(t, c.out.String(), "list.txt")
	c.out.Reset()
	assert.Equal(t, c.run("list", "-o", "json"), 0)
	var got []listedNode
	assert.NilError(t, json.Unmarshal(c.out.Bytes(), &got))
	assert.Equal(t, len(got), 3)
	assert.Equal(t, got[2].APIServer, "https://127.0.0.1:6443")

	c = newCLI(t)
	c.names = func() ([]string, error) { return nil, nil }
	assert.Equal(t, c.run("list", "-o", "json"), 0)
	assert.Equal(t, c.out.String(), "[]\n")
	c.names = func() ([]string, error) { return nil, errors.New("permission denied") }
	assert.Equal(t, c.run("list"), 1)
}

func TestDownAll(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	nodes := c.account()
	assert.Equal(t, c.run("down", "--all"), errdefs.ExitConfig, "the damaged entry is reported")
	assert.Check(t, is.Contains(c.err.String(), `error: stop node "broken": read the registry entry: damaged`))
	assert.Check(t, is.Equal(c.out.String(), "node \"web\" stopped (0.0s)\n"))
	assert.DeepEqual(t, nodes["old"].calls, []string{"status"})

	c = newCLI(t)
	nodes = c.account()
	c.run("down", "--all", "--delete-data")
	assert.DeepEqual(t, nodes["old"].calls, []string{"status", "stop", "delete"})
	assert.DeepEqual(t, nodes["web"].calls, []string{"status", "stop", "delete"})
	assert.DeepEqual(t, c.node.calls, []string{"begin stop 3s"})

	c = newCLI(t)
	c.names = func() ([]string, error) { return nil, nil }
	assert.Equal(t, c.run("down", "--all"), 0)
	assert.Equal(t, c.out.String(), "no node of this account is running\n")
	assert.Equal(t, c.run("--name", "web", "down", "--all"), errdefs.ExitConfig)
	assert.Equal(t, c.run("down", "--all", "--name", "web"), errdefs.ExitConfig)
}
