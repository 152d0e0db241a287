package child

import (
	"fmt"
	"os"

	"github.com/rootless-containers/rootlesskit/v3/pkg/common"
	"github.com/rootless-containers/rootlesskit/v3/pkg/messages"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network/gvisortapvsock"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network/lxcusernic"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network/pasta"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network/slirp4netns"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network/vpnkit"
	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
	portgvisor "github.com/rootless-containers/rootlesskit/v3/pkg/port/gvisortapvsock"
	portpasta "github.com/rootless-containers/rootlesskit/v3/pkg/port/pasta"
	portslirp "github.com/rootless-containers/rootlesskit/v3/pkg/port/slirp4netns"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/portdriver"
)

// networkDriver returns RootlessKit's child driver for a driver name from the effective config.
func networkDriver(name string, rt layout.Runtime) (network.ChildDriver, error) {
	switch name {
	case config.DriverSlirp:
		return slirp4netns.NewChildDriver(), nil
	case config.DriverGvisor:
		return gvisortapvsock.NewChildDriver(), nil
	case config.DriverPasta:
		return pasta.NewChildDriver(), nil
	case config.DriverLXCUserNIC:
		return recordingDriver{lxcusernic.NewChildDriver(), rt.Uplink()}, nil
	case config.DriverVPNKit:
		return vpnkit.NewChildDriver(), nil
	case config.DriverNone:
		return offlineDriver{}, nil
	}
	return nil, fmt.Errorf("unknown network driver %q", name)
}

// portDriver returns RootlessKit's child driver, or nil for the driver "none".
func portDriver(name string) (port.ChildDriver, error) {
	switch name {
	case config.DriverNone:
		return nil, nil
	case config.PortsBuiltin:
		return portdriver.NewChild(os.Stderr), nil
	case config.DriverSlirp:
		return portslirp.NewChildDriver(), nil
	case config.DriverGvisor:
		return portgvisor.NewChildDriver(), nil
	case config.PortsPesto:
		return portpasta.NewChildDriver(), nil
	}
	return nil, fmt.Errorf("unknown port driver %q", name)
}

// recordingDriver wraps a driver that gets its address inside the child, and writes the address to a file. The node
// role reads the file. The parent reads it too, and reports the address to clients that add ports.
type recordingDriver struct {
	network.ChildDriver
	file string
}

func (d recordingDriver) ConfigureNetworkChild(msg *messages.ParentInitNetworkDriverCompleted, netns string) (string, error) {
	dev, err := d.ChildDriver.ConfigureNetworkChild(msg, netns)
	if err != nil {
		return dev, err
	}
	return dev, layout.WriteJSON(d.file, layout.NetworkInfo{
		Interface: dev, IP: msg.IP, PrefixLen: msg.Netmask, Gateway: msg.Gateway, DNS: msg.DNS, MTU: msg.MTU,
	})
}

// offlineDriver creates a network device without a connection: one end of a veth pair whose other end is up but unused.
// The node's CNI plugins need veth devices anyway. Packets to the gateway fail with "no route to host" and are not
// dropped silently.
type offlineDriver struct{}

// offlineEnd is the unused end of the veth pair.
const offlineEnd = "nowhere0"

func (offlineDriver) ConfigureNetworkChild(msg *messages.ParentInitNetworkDriverCompleted, _ string) (string, error) {
	err := common.Execs(os.Stderr, os.Environ(), [][]string{
		{"ip", "link", "add", msg.Dev, "type", "veth", "peer", "name", offlineEnd},
		{"ip", "link", "set", offlineEnd, "up"},
	})
	if err != nil {
		return "", fmt.Errorf("create device %s: %w", msg.Dev, err)
	}
	return msg.Dev, nil
}

func (offlineDriver) ChildDriverInfo() (*network.ChildDriverInfo, error) {
	return &network.ChildDriverInfo{}, nil
}
