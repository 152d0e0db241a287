package parent

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rootless-containers/rootlesskit/v3/pkg/api"
	"github.com/rootless-containers/rootlesskit/v3/pkg/messages"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

func TestResolveDriverFollowsThePorts(t *testing.T) {
	t.Parallel()
	for ports, want := range map[string]string{"slirp4netns": "slirp4netns", "gvisor-tap-vsock": "gvisor-tap-vsock", "pesto": "pasta"} {
		c := config.Default()
		c.Ports.Driver = ports
		assert.Equal(t, ResolveDriver(c), want)
		c.Network.Driver = config.DriverVPNKit
		assert.Equal(t, ResolveDriver(c), config.DriverVPNKit, "an explicit driver must not be changed; Validate checks it")
	}
}

func TestResolvePorts(t *testing.T) {
	t.Parallel()
	find := func(programs ...string) func(string) string {
		return func(p string) string {
			if strings.Contains(strings.Join(programs, " "), p) {
				return "/sbin/" + p
			}
			return ""
		}
	}
	for _, tc := range []struct {
		ports       string
		transparent bool
		find        func(string) string
		driver, why string
	}{
		{"auto", true, find("nft", "iptables"), "builtin", "auto: works with every network driver, including pasta; preserves the addresses of TCP clients with nft"},
		{"auto", true, find("iptables"), "builtin", "auto: works with every network driver, including pasta; preserves the addresses of TCP clients with iptables"},
		{"", true, find(), "builtin", "auto: works with every network driver, including pasta; cannot preserve the addresses of TCP clients: neither nft nor iptables found"},
		{"auto", false, find("nft"), "builtin", "auto: works with every network driver, including pasta"},
		{"pesto", true, find("nft"), "pesto", "configured"},
		{"none", true, find("nft"), "none", "configured"},
	} {
		c := config.Default()
		c.Network.Driver, c.Ports.Driver, c.Ports.SourceIPTransparent = config.DriverPasta, tc.ports, tc.transparent
		driver, why := resolvePorts(c, tc.find)
		assert.Equal(t, driver, tc.driver)
		assert.Equal(t, why, tc.why)
	}
}

// TestPortDriver checks that each port driver of the config can be created, and that the network driver gets a socket for ports only if
// it forwards them, because older versions of pasta refuse one.
func TestPortDriver(t *testing.T) {
	t.Parallel()
	r := &run{Options: Options{Config: config.Default(), Runtime: layout.Runtime{Dir: t.TempDir()}}}
	for driver, socket := range map[string]string{
		config.DriverNone: "", config.DriverSlirp: ".s4nn.sock", config.DriverGvisor: "", config.PortsPesto: ".pasta.sock",
	} {
		r.Config.Ports.Driver = driver
		if socket != "" {
			assert.Equal(t, r.portSocket(driver), filepath.Join(r.Runtime.StateDir(), socket))
		}
		for _, other := range []string{config.DriverSlirp, config.PortsPesto} {
			if other != driver {
				assert.Equal(t, r.portSocket(other), "")
			}
		}
		d, err := r.portDriver()
		switch driver {
		case config.DriverNone:
			assert.Assert(t, d == nil && err == nil)
		case config.PortsPesto:
			if err != nil { // pesto is not installed
				assert.ErrorIs(t, err, errdefs.ErrPreflight)
				assert.ErrorContains(t, err, "port driver pesto: ")
				continue
			}
			fallthrough
		default:
			assert.NilError(t, err)
			info, err := d.Info(context.Background())
			assert.NilError(t, err)
			assert.Equal(t, info.Driver, driver)
			assert.Assert(t, info.DisallowLoopbackChildIP)
		}
	}
	r.Config.Ports.Driver = "socat"
	_, err := r.portDriver()
	assert.Error(t, err, "port driver socat: unknown driver")
}

func TestOffline(t *testing.T) {
	t.Parallel()
	_, ipnet, err := net.ParseCIDR("10.9.0.0/25")
	assert.NilError(t, err)
	d, err := newOffline(ipnet, 1400)
	assert.NilError(t, err)
	msg, cleanup, err := d.ConfigureNetwork(1, "", "")
	assert.NilError(t, err)
	assert.NilError(t, cleanup())
	assert.Equal(t, msg.IP, "10.9.0.100")
	assert.Equal(t, msg.Gateway, "10.9.0.2")
	assert.Equal(t, msg.Netmask, 25)
	assert.Equal(t, msg.MTU, 1400)
	info, err := d.Info(context.Background())
	assert.NilError(t, err)
	assert.Equal(t, info.ChildIP.String(), "10.9.0.100")
}

type dhcpDriver struct{ network.ParentDriver }

func (dhcpDriver) Info(context.Context) (*api.NetworkDriverInfo, error) {
	return &api.NetworkDriverInfo{Driver: "dhcp", DynamicChildIP: true}, nil
}

// TestHookReportsTheAddress checks that RootlessKit's API has the address that the child got by DHCP.
func TestHookReportsTheAddress(t *testing.T) {
	t.Parallel()
	h := &networkHook{ParentDriver: dhcpDriver{}, uplink: filepath.Join(t.TempDir(), "uplink.json")}
	info, err := h.Info(context.Background())
	assert.NilError(t, err)
	assert.Assert(t, info.ChildIP == nil)
	assert.NilError(t, layout.WriteJSON(h.uplink, layout.NetworkInfo{IP: "10.0.3.7", DNS: []string{"10.0.3.1"}}))
	info, err = h.Info(context.Background())
	assert.NilError(t, err)
	assert.Equal(t, info.ChildIP.String(), "10.0.3.7")
	assert.Equal(t, info.DNS[0].String(), "10.0.3.1")
}

// roleDriver records the role in the environment that it would pass to its program.
type roleDriver struct {
	dhcpDriver
	role *string
}

func (d roleDriver) ConfigureNetwork(int, string, string) (*messages.ParentInitNetworkDriverCompleted, func() error, error) {
	*d.role = os.Getenv(layout.EnvRole)
	return &messages.ParentInitNetworkDriverCompleted{}, nil, nil
}

// TestChildEnv checks that only the child gets the child's role, and that it does not get the sockets of the service manager.
func TestChildEnv(t *testing.T) {
	for _, key := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PIDFDID", "PATH", layout.EnvRole, layout.EnvRuntimeDir} {
		t.Setenv(key, "1") // restores the variable after the test
	}
	assert.NilError(t, setChildEnv(layout.RoleChild, layout.Runtime{Dir: "/run/x"}))
	for _, kv := range os.Environ() {
		assert.Check(t, !strings.HasPrefix(kv, "LISTEN_"), kv)
	}
	role, rt := layout.TakeRole()
	assert.Equal(t, role, layout.RoleChild)
	assert.Equal(t, rt.Dir, "/run/x")
	h := &networkHook{ParentDriver: roleDriver{role: &role}, after: func(int, layout.NetworkInfo) error { return nil }}
	_, _, err := h.ConfigureNetwork(os.Getpid(), "", "")
	assert.NilError(t, err)
	h.handle.Close()
	assert.Equal(t, role, "")
}
