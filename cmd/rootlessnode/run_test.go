package main

import (
	"encoding/json"
	"os"
	"strconv"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/hostexec"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

func TestRunEntersTheNode(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.exe = "/usr/bin/rootlessnode"
	assert.NilError(t, layout.WriteJSON(c.node.Runtime().Handover(), layout.HandoverInfo{ChildPID: os.Getpid()}))
	assert.Equal(t, c.run("run", "--", "curl", "-v", "http://web"), 0, c.err.String())
	assert.DeepEqual(t, c.replaced[2:10], []string{"-t", strconv.Itoa(os.Getpid()), "-U", "-n", "--preserve-credentials", "--", c.exe, runPrepare})
	assert.DeepEqual(t, c.replaced[12:], []string{"curl", "-v", "http://web"})
	var v hostexec.View
	assert.NilError(t, json.Unmarshal([]byte(c.replaced[11]), &v))
	assert.Equal(t, v.Scratch, c.node.dir)
}

func TestRunNeedsTheNode(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	assert.Equal(t, c.run("run", "true"), errdefs.ExitOther)
	assert.Equal(t, c.err.String(), "error: node \"default\" is not running\nhint: rootlessnode up\n")
	assert.NilError(t, layout.WriteJSON(c.node.Runtime().Handover(), layout.HandoverInfo{ChildPID: 1 << 30}))
	assert.Equal(t, c.run("run", "true"), errdefs.ExitOther, "the node was killed")
	assert.Equal(t, c.run("run"), errdefs.ExitConfig)
	assert.Equal(t, len(c.replaced), 0)
}

// The hidden commands cannot be used in other ways.
func TestRunSteps(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	assert.Equal(t, c.run(runPrepare, "{}", "true"), errdefs.ExitConfig)
	c.uid = 0
	assert.Equal(t, c.run(runPrepare, "{}", "true"), errdefs.ExitConfig, "root of the host")
	assert.Equal(t, c.run("run", "true"), errdefs.ExitPreflight)
	assert.Equal(t, c.run(runExecute, "999", "/does/not/exist"), 127)
}

func TestViewOf(t *testing.T) {
	t.Parallel()
	cfg := config.Default()
	cfg.Cluster.DNSAddress, cfg.Cluster.Domain = "10.43.0.10", "cluster.local"
	v := viewOf(cfg, layout.Runtime{Dir: "/run/x"}, func(path string) string { return "search of." + path + "\n" })
	assert.Equal(t, len(v.Files), 3)
	assert.Check(t, is.Contains(v.Files[0].Content, "nameserver 10.43.0.10\nsearch default.svc.cluster.local svc.cluster.local cluster.local of./etc/resolv.conf\n"))
	assert.Check(t, is.Contains(v.Files[1].Content, cfg.Network.HostAddress+" "+config.HostName+"\n"))
}
