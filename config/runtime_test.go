package config

import (
	"strings"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// TestValidateOCIRuntimes checks names and paths of containerd.runtimes.
func TestValidateOCIRuntimes(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{"runc": "cannot be replaced", "A": "the name must have", "crun": "must be an absolute path"} {
		c := complete()
		c.Containerd.Runtimes = map[string]string{name: "crun"}
		assert.ErrorContains(t, c.Validate(), want)
	}
}

func TestRuntimes(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		runtime, endpoint string
	}{
		{RuntimeContainerd, ""},
		{RuntimeCRIO, ""},
		{RuntimeExternal, "unix:///run/mine/cri.sock"},
	} {
		c := complete()
		c.CRI = CRI{tc.runtime, tc.endpoint}
		assert.NilError(t, c.Validate(), tc.runtime)
	}
}

func TestRuntimeRefuses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		change func(*NodeConfig)
		want   string
	}{
		{"unknown", func(c *NodeConfig) { c.CRI.Runtime = "docker" }, `cri.runtime: "docker": must be one of containerd, crio, external`},
		{"no endpoint", func(c *NodeConfig) { c.CRI.Runtime = RuntimeExternal },
			"cri.endpoint: required with cri.runtime external"},
		{"endpoint of none", func(c *NodeConfig) { c.CRI.Endpoint = "unix:///a" },
			"cri.endpoint: supported only with cri.runtime external, not with containerd"},
		{"tcp", func(c *NodeConfig) { c.CRI = CRI{RuntimeExternal, "tcp://10.0.0.1:1"} },
			`cri.endpoint: "tcp://10.0.0.1:1": must be unix:// followed by the absolute path of a socket inside the node`},
		{"relative", func(c *NodeConfig) { c.CRI = CRI{RuntimeExternal, "unix://a/b"} },
			`cri.endpoint: "unix://a/b": must be unix:// followed by the absolute path of a socket inside the node`},
		{"driver", func(c *NodeConfig) { c.CRI.Runtime, c.CRIO.StorageDriver = RuntimeCRIO, "btrfs" },
			`crio.storageDriver: "btrfs": must be one of auto, overlay, vfs`},
		{"covered", func(c *NodeConfig) {
			c.CRI.Runtime, c.CRIO.RegistriesConf = RuntimeCRIO, "/etc/containers/registries.conf"
		},
			"crio.registriesConf: /etc/containers/registries.conf: not visible inside the node, which has its own /etc/containers"},
		{"containerd's with crio", func(c *NodeConfig) { c.CRI.Runtime, c.Containerd.NRI = RuntimeCRIO, true },
			"containerd.nri: has no effect with cri.runtime crio"},
		{"containerd's with external", func(c *NodeConfig) {
			c.CRI, c.Containerd.Snapshotter = CRI{RuntimeExternal, "unix:///a"}, "native"
		}, "containerd.snapshotter: has no effect with cri.runtime external"},
		{"crio's with containerd", func(c *NodeConfig) { c.CRIO.Conmon = "/usr/bin/conmon" }, "crio.conmon: has no effect with cri.runtime containerd"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			c := complete()
			tc.change(c)
			err := c.Validate()
			assert.ErrorIs(t, err, errdefs.ErrConfig)
			assert.Equal(t, err.Error(), tc.want)
		})
	}
}

func TestRuntimeReportsAllErrors(t *testing.T) {
	t.Parallel()
	c := complete()
	c.CRI.Runtime, c.Containerd.NRI, c.Containerd.RegistryConfigDir, c.CRIO.PauseImage = RuntimeCRIO, true, "/home/u/certs.d", ""
	err := c.Validate()
	for _, field := range []string{"containerd.nri", "containerd.registryConfigDir", "crio.pauseImage"} {
		assert.ErrorContains(t, err, field+": ")
	}
	assert.Assert(t, strings.Contains(strings.Join(errdefs.ReportOf(err).Hints, " "), "crio.registriesConf"))
}
