package child

import (
	"path/filepath"
	"testing"

	"github.com/rootless-containers/rootlesskit/v3/pkg/messages"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// TestDriversHaveChildDrivers checks that each driver of the config except auto has a child driver.
func TestDriversHaveChildDrivers(t *testing.T) {
	t.Parallel()
	for _, name := range []string{config.DriverSlirp, config.DriverGvisor, config.DriverPasta, config.DriverLXCUserNIC, config.DriverVPNKit, config.DriverNone} {
		d, err := networkDriver(name, layout.Runtime{})
		assert.NilError(t, err, name)
		assert.Assert(t, d != nil)
	}
	for _, name := range []string{config.PortsBuiltin, config.DriverSlirp, config.DriverGvisor, config.PortsPesto} {
		d, err := portDriver(name)
		assert.NilError(t, err, name)
		assert.Assert(t, d != nil)
	}
	d, err := portDriver(config.DriverNone)
	assert.Assert(t, d == nil && err == nil)
	_, err = portDriver(config.DriverAuto)
	assert.Error(t, err, `unknown port driver "auto"`)
	_, err = networkDriver(config.DriverAuto, layout.Runtime{})
	assert.Error(t, err, `unknown network driver "auto"`)
}

type dhcp struct{ network.ChildDriver }

func (dhcp) ConfigureNetworkChild(m *messages.ParentInitNetworkDriverCompleted, _ string) (string, error) {
	m.IP, m.Netmask, m.Gateway, m.DNS = "10.0.3.7", 24, "10.0.3.1", []string{"10.0.3.1"}
	return "eth0", nil
}

// TestReadHandover checks that settings from DHCP replace those that the parent could not know.
func TestReadHandover(t *testing.T) {
	t.Parallel()
	rt := layout.Runtime{Dir: t.TempDir()}
	_, err := readHandover(rt)
	assert.ErrorContains(t, err, "read the parent's handover")
	parent := layout.HandoverInfo{Network: layout.NetworkInfo{Driver: "lxc-user-nic", Ports: "builtin", MTU: 1500}}
	assert.NilError(t, layout.WriteJSON(rt.Handover(), parent))
	h, err := readHandover(rt)
	assert.NilError(t, err, "without a file of the child")
	assert.DeepEqual(t, h.Network, parent.Network)

	d := recordingDriver{dhcp{}, filepath.Join(rt.Dir, "uplink.json")}
	dev, err := d.ConfigureNetworkChild(&messages.ParentInitNetworkDriverCompleted{MTU: 1400}, "")
	assert.NilError(t, err)
	assert.Equal(t, dev, "eth0")
	h, err = readHandover(rt)
	assert.NilError(t, err)
	assert.DeepEqual(t, h.Network, layout.NetworkInfo{
		Driver: "lxc-user-nic", Ports: "builtin", Interface: "eth0", IP: "10.0.3.7", PrefixLen: 24, Gateway: "10.0.3.1",
		DNS: []string{"10.0.3.1"}, MTU: 1400,
	})
}
