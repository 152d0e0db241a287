package e2e

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"
)

// TestBadInput checks that each fault is reported as one clear error with a hint and the documented exit code, and leaves nothing behind.
func TestBadInput(t *testing.T) {
	t.Parallel()
	require(t)
	taken, err := net.Listen("tcp4", "127.0.0.1:0")
	assert.NilError(t, err)
	t.Cleanup(func() { _ = taken.Close() }) // after the subtests, which run in parallel
	_, takenPort, err := net.SplitHostPort(taken.Addr().String())
	assert.NilError(t, err)
	file := func(text string) string {
		path := filepath.Join(t.TempDir(), "config.yaml")
		assert.NilError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	const head = "apiVersion: rootlessnode.dev/v1alpha1\nkind: NodeConfig\n"
	long := filepath.Join(t.TempDir(), strings.Repeat("x", 90))
	assert.NilError(t, os.MkdirAll(long, 0o700))
	empty := t.TempDir()
	for _, c := range []struct {
		name string
		by   []string // prefix of the command line
		env  []string
		args []string
		code int
		says []string
	}{
		{name: "unknown field", args: []string{"up", "--config", file(head + "network: {driverr: auto}\n")}, code: 2, says: []string{"driverr"}},
		{
			name: "several faults at once",
			args: []string{"up", "--set", "cluster.podCIDR=10.300.0.0/16", "--set", "network.mtu=3", "--set", "api.port=99999"}, code: 2,
			says: []string{"podCIDR", "mtu", "api.port"},
		},
		{
			name: "overlapping networks", args: []string{"up", "--set", "cluster.serviceCIDR=10.42.128.0/20"}, code: 2,
			says: []string{"podCIDR", "serviceCIDR", "overlap"},
		},
		{name: "name with a slash", args: []string{"--name", "a/b", "up"}, code: 2, says: []string{"a/b"}},
		{name: "port in use", args: []string{"up", "--set", "api.port=" + takenPort}, code: 3, says: []string{takenPort, "api.port"}},
		{name: "no components", args: []string{"up", "--components-dir", empty}, code: 3, says: []string{"manifest"}},
		{name: "foreign runtime dir", env: []string{"XDG_RUNTIME_DIR=/"}, args: []string{"check"}, says: []string{"belongs to uid 0"}, code: -1},
		{name: "socket path too long", env: []string{"XDG_RUNTIME_DIR=" + long}, args: []string{"up"}, code: 3, says: []string{"107"}},
		{name: "no newuidmap", env: []string{"PATH=" + empty}, args: []string{"up"}, code: 3, says: []string{"newuidmap", "uidmap"}},
		{
			name: "no account and no runtime dir", by: []string{"unshare", "--user", "--map-user=4242", "--"}, env: []string{"XDG_RUNTIME_DIR="},
			args: []string{"up"}, code: 3, says: []string{"RN-RUNTIME-DIR:", "/run/user/4242", "RN-ACCOUNT: uid 4242"},
		},
		{name: "unknown command", args: []string{"ip"}, code: 2, says: []string{"ip"}},
		{name: "not running", args: []string{"exec", "--", "true"}, code: 1, says: []string{"not running"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			name := "e2e-bad"
			args := c.args
			if args[0] == "--name" {
				name, args = args[1], args[2:]
			}
			argv := slices.Concat(c.by, []string{binary("rootlessnode"), "--name", name}, args)
			cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
			cmd.Env = append(os.Environ(), c.env...)
			cmd.WaitDelay = time.Second
			out, _ := cmd.CombinedOutput()
			if c.code >= 0 {
				assert.Equal(t, cmd.ProcessState.ExitCode(), c.code, "%s", out)
			}
			for _, text := range c.says {
				assert.Assert(t, cmp.Contains(string(out), text))
			}
			if c.code > 1 {
				assert.Assert(t, cmp.Contains(string(out), "error:"))
			}
			assert.NilError(t, trace("e2e-bad"))
		})
	}
}
