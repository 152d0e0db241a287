package parent

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
	"gotest.tools/v3/poll"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// TestHostNetworkChanges checks that the node role learns of new routes and of new search domains of the host. The test process
// simulates the host, with its own /etc and network.
func TestHostNetworkChanges(t *testing.T) {
	const inner = "PARENT_TEST_HOST_NETWORK"
	if os.Getenv(inner) != "" {
		changeHostNetwork(t)
		return
	}
	t.Parallel()
	testutil.Require(t, testutil.UserNS, testutil.Program("ip"))
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestHostNetworkChanges$", "-test.v")
	cmd.Env = append(os.Environ(), inner+"=1", "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	cmd.SysProcAttr = newNamespaces(os.Geteuid(), os.Getegid())
	out, err := cmd.CombinedOutput()
	assert.NilError(t, err, "%s", out)
}

func changeHostNetwork(t *testing.T) {
	t.Helper()
	assert.NilError(t, unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	assert.NilError(t, unix.Mount("tmpfs", "/etc", "tmpfs", 0, ""))
	const resolvConf, link = "/etc/resolver/resolv.conf", "resolver/resolv.conf"
	assert.NilError(t, os.Mkdir(filepath.Dir(resolvConf), 0o755))
	setSearch := func(domain string) {
		assert.NilError(t, os.WriteFile(resolvConf+".new", []byte("nameserver 192.0.2.1\nsearch "+domain+"\n"), 0o644))
		assert.NilError(t, os.Rename(resolvConf+".new", resolvConf))
	}
	setSearch("a.example")
	assert.NilError(t, os.Symlink(link, "/etc/resolv.conf"))
	for _, line := range []string{"link set lo up", "link add d0 type veth peer name d1", "link set d1 up", "link set d0 up", "route add 10.0.0.0/8 dev d0"} {
		execute(t, append([]string{"ip"}, strings.Fields(line)...)...)
	}
	rt := layout.NewRuntime(t.TempDir(), "x")
	assert.NilError(t, os.MkdirAll(rt.Dir, 0o700))
	w, err := watchAddresses(func(err error) { t.Error(err) }, (&run{Options: Options{Config: config.Default(), Runtime: rt}}).addressFiles(t.Context())...)
	assert.NilError(t, err)
	defer w.close()
	stop, err := w.watchResolver(func(err error) { t.Error(err) })
	assert.NilError(t, err)
	defer stop()

	var routes []layout.RouteOverlap
	assert.NilError(t, layout.ReadJSON(rt.HostRoutes(), &routes))
	assert.Equal(t, len(routes), 0, "the checks before the start have reported this route")
	has(t, rt.HostResolver(), func(r hostinfo.Resolver) bool { return strings.Join(r.Search, " ") == "a.example" })

	execute(t, "ip", "route", "add", "10.42.7.0/24", "dev", "d0")
	has(t, rt.HostRoutes(), func(all []layout.RouteOverlap) bool {
		return len(all) == 1 && all[0].Field == "cluster.podCIDR" && all[0].Route == "10.42.7.0/24" && all[0].Device == "d0" && all[0].Free != ""
	})
	setSearch("vpn.example")
	has(t, rt.HostResolver(), func(r hostinfo.Resolver) bool { return strings.Join(r.Search, " ") == "vpn.example" })
	execute(t, "ip", "route", "del", "10.42.7.0/24", "dev", "d0")
	has(t, rt.HostRoutes(), func(all []layout.RouteOverlap) bool { return len(all) == 0 })
}

// has waits until the content of a JSON file is as expected.
func has[T any](t *testing.T, path string, expected func(T) bool) {
	t.Helper()
	poll.WaitOn(t, func(poll.LogT) poll.Result {
		var v T
		if err := layout.ReadJSON(path, &v); err != nil {
			return poll.Error(err)
		}
		if !expected(v) {
			return poll.Continue("%s: %+v", path, v)
		}
		return poll.Success()
	}, poll.WithDelay(10*time.Millisecond), poll.WithTimeout(time.Minute))
}
