package preflight

import (
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// TestKernelRoutes adds routes to several tables of a network namespace of its own.
func TestKernelRoutes(t *testing.T) {
	const inner = "PREFLIGHT_TEST_ROUTES"
	if os.Getenv(inner) != "" {
		for _, line := range []string{
			"link set lo up", "link add d0 type veth peer name d1", "link set d1 up", "address add 10.0.2.15/24 dev d0", "link set d0 up", "route add default via 10.0.2.2",
			"route add 10.42.7.0/24 dev d0 table 100", "rule add from 10.0.2.15 table 100", "route add blackhole 10.9.0.0/16", "route add 192.0.2.1 dev lo",
		} {
			out, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", "ip "+line).CombinedOutput()
			assert.NilError(t, err, "%s: %s", line, out)
		}
		routes, err := kernelRoutes()
		assert.NilError(t, err)
		var got []string
		for _, r := range routes {
			got = append(got, r.prefix.String()+" "+r.device)
		}
		slices.Sort(got)
		assert.DeepEqual(t, got, []string{"10.0.2.0/24 d0", "10.42.7.0/24 d0", "192.0.2.1/32 lo"})
		assert.Equal(t, TapNetwork(config.Default()), "10.241.2.0/24")
		return
	}
	t.Parallel()
	testutil.Require(t, testutil.UserNS, testutil.Program("ip"))
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestKernelRoutes$")
	cmd.Env = append(os.Environ(), inner+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	assert.NilError(t, err, "%s", out)
}
