package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
	"gotest.tools/v3/golden"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// lastSettings returns settings with these fields, as a start reads them from the data.
func lastSettings(fields ...config.Setting) *config.Settings { return &config.Settings{Fields: fields} }

// TestUpRemembers checks that `up` uses the flags of the last start, and how they can be changed and forgotten.
func TestUpRemembers(t *testing.T) {
	t.Parallel()
	port := config.Setting{Path: "api.port", Value: "7444"}
	for _, tc := range []struct {
		name string
		args []string
		port int
		mtu  int
		said bool
	}{
		{name: "no flags", args: []string{"up"}, port: 7444, mtu: 1500, said: true},
		{name: "another flag", args: []string{"up", "--set", "network.mtu=9000"}, port: 7444, mtu: 9000, said: true},
		{name: "an explicit flag wins", args: []string{"up", "--set", "api.port=7555"}, port: 7555, mtu: 1500},
		{name: "forgotten", args: []string{"up", "--reset-config"}, port: 6443, mtu: 1500},
		{name: "one forgotten", args: []string{"up", "--unset", "api.port"}, port: 6443, mtu: 1500},
		{name: "a file is the whole configuration", args: []string{"up", "--config", configFile(t, "network:\n  mtu: 9000\n")}, port: 6443, mtu: 9000},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := newCLI(t)
			c.last, c.node.statuses = lastSettings(port), upStatuses()
			assert.Equal(t, c.run(tc.args...), 0, c.err.String())
			assert.Check(t, is.Equal(c.node.cfg.API.Port, tc.port))
			assert.Check(t, is.Equal(c.node.cfg.Network.MTU, tc.mtu))
			const note = "using the settings of the last start, which --reset-config forgets: --set api.port=7444\n"
			if tc.said {
				assert.Check(t, is.Contains(c.err.String(), note))
			} else {
				assert.Check(t, !is.Contains(c.err.String(), "settings of the last start")().Success(), c.err.String())
			}
		})
	}
	c := newCLI(t)
	assert.Equal(t, c.run("up", "--unset", "api.port"), 2)
	assert.Check(t, is.Contains(c.err.String(), "--unset api.port: no flag of the last start has set this field"))
}

// configFile returns the path of a configuration file with these fields.
func configFile(t *testing.T, fields string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "node.yaml")
	assert.NilError(t, os.WriteFile(path, []byte("apiVersion: "+config.APIVersion+"\nkind: "+config.Kind+"\n"+fields), 0o600))
	return path
}

// TestRememberedFile checks that a remembered configuration file is read again, and that its removal is reported with the fix.
func TestRememberedFile(t *testing.T) {
	t.Parallel()
	path := configFile(t, "network:\n  mtu: 9000\n")
	last, err := config.ReadSettings(path)
	assert.NilError(t, err)
	c := newCLI(t)
	c.last, c.node.statuses = &last, upStatuses()
	assert.NilError(t, os.WriteFile(path, []byte("apiVersion: "+config.APIVersion+"\nkind: "+config.Kind+"\nnetwork:\n  mtu: 8000\n"), 0o600))
	assert.Equal(t, c.run("up"), 0, c.err.String())
	assert.Equal(t, c.node.cfg.Network.MTU, 8000)

	assert.NilError(t, os.Remove(path))
	c = newCLI(t)
	c.last = &last
	assert.Equal(t, c.run("up"), 2)
	assert.Check(t, is.Contains(c.err.String(), "error: the configuration file of the last start of node \"default\": read config: open "+path+": no such file or directory"))
	assert.Check(t, is.Contains(c.err.String(), "rootlessnode up --reset-config"))
	assert.Check(t, is.Equal(c.run("up", "--reset-config"), 0))
	assert.Check(t, is.Equal(c.run("status"), 0), "the node can be inspected without the file")
}

// TestUpOnARunningNode checks that `up` succeeds if the running node has the same configuration, and otherwise reports the differences.
func TestUpOnARunningNode(t *testing.T) {
	t.Parallel()
	running := func(t *testing.T) *cli {
		c := newCLI(t)
		c.node.statuses = []status.Status{upStatuses()[3]}
		c.node.statuses[0].ParentPID = 7
		c.last = lastSettings(config.Setting{Path: "api.port", Value: "7444"}, config.Setting{Path: "network.nameServers", Value: "192.0.2.53"})
		return c
	}
	for _, args := range [][]string{{"up"}, {"up", "--set", "api.port=7444"}, {"up", "--set", "network.mtu=1500"}, {"up", "--timeout", "5s"}} {
		c := running(t)
		assert.Check(t, is.Equal(c.run(args...), 0), "%v: %s", args, c.err.String())
		assert.Check(t, is.DeepEqual(c.node.calls, []string{"status"}), "%v", args)
		assert.Check(t, is.Contains(c.out.String(), "node \"default\" is already running\n"))
		assert.Check(t, is.Equal(c.err.String(), ""))
	}
	c := running(t)
	assert.Equal(t, c.run("up", "--set", "api.port=7555", "--unset", "network.nameServers", "--set", "logLevel=debug"), 1)
	golden.Assert(t, c.err.String(), "running-differs.txt")
	assert.DeepEqual(t, c.node.calls, []string{"status"})

	// A node that another program has started: only the flags are compared.
	c = running(t)
	c.last = nil
	assert.Check(t, is.Equal(c.run("up"), 0), c.err.String())
	assert.Check(t, is.Equal(c.run("up", "--set", "api.port=7555"), 1))
	assert.Check(t, is.Contains(c.err.String(), `error: api.port: node "default" is running with 6443, requested: 7555`))
	// A node that stops cannot be used.
	c = running(t)
	c.node.statuses[0].State = status.NodeStopping
	assert.Check(t, is.Equal(c.run("up"), 0))
	assert.DeepEqual(t, c.node.calls[:2], []string{"status", "start"}) // Start returns the error
}

// TestOriginsOfTheConfig checks `config effective`.
func TestOriginsOfTheConfig(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.last = lastSettings(config.Setting{Path: "api.port", Value: "7444"}, config.Setting{Path: "kubelet.evictionHard.memory.available", Value: "1Gi"})
	assert.Equal(t, c.run("config", "effective", "--set", "network.mtu=9000"), 0, c.err.String())
	assert.Check(t, is.Contains(c.out.String(), "  mtu: 9000    # flag\n"))
	assert.Check(t, is.Contains(c.out.String(), "  port: 7444    # flag, remembered\n"))
	assert.Check(t, is.Contains(c.out.String(), "  evictionHard:    # flag, remembered\n"))
	assert.Check(t, is.Contains(c.out.String(), "  bindAddress: 127.0.0.1\n"))
	cfg, err := config.LoadBytes(c.out.Bytes(), "output")
	assert.NilError(t, err)
	assert.Equal(t, cfg.API.Port, 7444)

	c.out.Reset()
	assert.Equal(t, c.run("config", "effective", "-o", "json"), 0, c.err.String())
	var got effectiveConfig
	assert.NilError(t, json.Unmarshal(c.out.Bytes(), &got))
	assert.Equal(t, got.Config.API.Port, 7444)
	assert.DeepEqual(t, got.Origins["api.port"], config.Origin{Kind: config.OriginFlag, Remembered: true})
	assert.DeepEqual(t, got.Origins["network.mtu"], config.Origin{Kind: config.OriginDefault})

	c.node.statuses = []status.Status{{ParentPID: 7}}
	c.out.Reset()
	assert.Equal(t, c.run("config", "effective"), 0, c.err.String())
	assert.Check(t, is.Contains(c.out.String(), "  port: 6443    # flag\n"), "the config of the running node")
}
