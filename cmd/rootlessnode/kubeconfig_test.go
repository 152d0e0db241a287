package main

import (
	"errors"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

func ready() []status.Status {
	return []status.Status{{State: status.NodeReady, NodeName: "devbox", StartedAt: t0}}
}

func TestUpMergesKubeconfig(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.node.statuses, c.kubeconfig.path = ready(), "/home/u/.kube/config"
	assert.Equal(t, c.run("up"), 0, c.err.String())
	assert.Check(t, is.Contains(c.out.String(), "rootlessnode-default in /home/u/.kube/config"))
	assert.DeepEqual(t, c.kubeconfig.calls, []string{"merge"})

	for _, arg := range []string{"--kubeconfig-merge=false", "--set=kubeconfigMerge=false"} {
		c = newCLI(t)
		c.node.statuses = ready()
		assert.Equal(t, c.run("up", arg), 0, c.err.String())
		assert.Equal(t, len(c.kubeconfig.calls), 0)
	}
	c = newCLI(t)
	c.node.statuses = ready()
	c.joined = config.Join{Server: testServer}
	assert.Equal(t, c.run("up", "--join", testServer), 0, c.err.String())
	assert.Equal(t, len(c.kubeconfig.calls), 0, "a worker has no administrator")
}

// A kubeconfig that cannot be changed is a warning, because the node can be used without it.
func TestUpWarnsOfKubeconfig(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.node.statuses = ready()
	c.kubeconfig.err = errdefs.Errorf("change kubeconfig /x: denied").Do(errdefs.MergeKubeconfig)
	assert.Equal(t, c.run("up"), 0)
	assert.Check(t, is.Contains(c.err.String(), "warning: change kubeconfig /x: denied\nhint: rootlessnode kubeconfig --merge\n"))
	assert.Check(t, is.Contains(c.out.String(), "is Ready"))
	assert.Equal(t, c.run("kubeconfig", "--merge"), errdefs.ExitOther)
}

func TestForegroundMergesKubeconfig(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	merged := make(chan struct{})
	c.kubeconfig.merged = func() { close(merged) }
	c.node.serve = func() { <-merged }
	assert.Equal(t, c.run("up", "--foreground"), 0, c.err.String())
}

func TestDeleteDataUnmergesKubeconfig(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.kubeconfig.changed = []string{"/home/u/.kube/config"}
	assert.Equal(t, c.run("down"), 0)
	assert.Equal(t, len(c.kubeconfig.calls), 0)
	assert.Equal(t, c.run("down", "--delete-data"), 0)
	assert.DeepEqual(t, c.kubeconfig.calls, []string{"unmerge"})
	assert.Check(t, is.Contains(c.out.String(), "removed the context of the node from /home/u/.kube/config\n"))

	c.kubeconfig.err = errors.New("change kubeconfig /x: denied")
	assert.Equal(t, c.run("down", "--delete-data"), 0)
	assert.Equal(t, c.err.String(), "warning: change kubeconfig /x: denied\n")

	c = newCLI(t)
	c.node.fails["delete"] = errors.New("files are left")
	assert.Equal(t, c.run("down", "--delete-data"), errdefs.ExitOther)
	assert.Equal(t, len(c.kubeconfig.calls), 0)
}

func TestKubeconfigMergeCommand(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.kubeconfig.path = "/home/u/.kube/config"
	assert.Equal(t, c.run("kubeconfig", "--merge"), 0)
	assert.Equal(t, c.out.String(), "context rootlessnode-default is in /home/u/.kube/config\n")
	c.out.Reset()
	assert.Equal(t, c.run("kubeconfig", "--unmerge"), 0)
	assert.Equal(t, c.out.String(), "no kubeconfig has a context of node \"default\"\n")
	assert.Equal(t, c.run("kubeconfig", "--merge", "--unmerge"), errdefs.ExitConfig)
}
