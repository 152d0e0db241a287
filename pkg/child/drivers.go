package child

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"

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
	"github.com/rootlessnode/rootlessnode/internal/podstop"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
	"github.com/rootlessnode/rootlessnode/pkg/portdriver"
)

// networkDriver makes RootlessKit's child driver. The config's drivers are resolved.
func networkDriver(name string, rt layout.Runtime) (network.ChildDriver, error) {
	switch name {
	case config.DriverSlirp:
		return slirp4netns.NewChildDriver(), nil
	case config.DriverGvisor:
		return gvisortapvsock.NewChildDriver(), nil
	case config.DriverPasta:
		return pasta.NewChildDriver(), nil
	case config.DriverLXCUserNIC:
		return recording{lxcusernic.NewChildDriver(), rt.Uplink()}, nil
	case config.DriverVPNKit:
		return vpnkit.NewChildDriver(), nil
	case config.DriverNone:
		return offline{}, nil
	}
	return nil, fmt.Errorf("network driver %q is unknown", name)
}

// portDriver makes RootlessKit's child driver; nil for none.
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
	return nil, fmt.Errorf("port driver %q is unknown", name)
}

// recording wraps a driver that learns its address inside, and writes it down: for the node role, and for the parent,
// which tells it to whoever adds ports.
type recording struct {
	network.ChildDriver
	file string
}

func (d recording) ConfigureNetworkChild(msg *messages.ParentInitNetworkDriverCompleted, netns string) (string, error) {
	dev, err := d.ChildDriver.ConfigureNetworkChild(msg, netns)
	if err != nil {
		return dev, err
	}
	return dev, layout.WriteJSON(d.file, layout.NetworkInfo{
		Interface: dev, IP: msg.IP, PrefixLen: msg.Netmask, Gateway: msg.Gateway, DNS: msg.DNS, MTU: msg.MTU,
	})
}

// learnUplink completes what the parent handed over by what the child learned.
func (n *nodeRole) learnUplink() error {
	var own layout.NetworkInfo
	err := layout.ReadJSON(n.rt.Uplink(), &own)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read what the child learned of its network: %w", err)
	}
	h := &n.handover.Network
	h.Interface, h.IP, h.PrefixLen, h.Gateway, h.DNS, h.MTU = own.Interface, own.IP, own.PrefixLen, own.Gateway, own.DNS, own.MTU
	return nil
}

// shortcomings says once, in the log and in the status, what the chosen drivers cannot do and may be expected to.
func (n *nodeRole) shortcomings() {
	c := n.cfg
	for _, text := range n.handover.Network.Warnings {
		n.warn("%s", text)
	}
	if _, err := exec.LookPath(n.binary(podstop.Program)); err != nil {
		n.warn("%s is not installed with the components (%v): when the node stops, pods get TERM without their preStop hooks", podstop.Program, err)
	}
	if c.Network.Driver == config.DriverNone {
		n.warn("network.driver none: nothing inside reaches out, and images have to be imported")
	}
	if c.Ports.Driver == config.DriverSlirp && !c.Network.AllowHostLoopback {
		n.warn("ports.driver slirp4netns: UDP clients on the host's loopback get no answer; ports.driver builtin answers them")
	}
	if d := c.Network.Driver; c.Network.IPv6 && !leadsOutV6(d) && d != config.DriverNone {
		n.warn("network.driver %s leads out with IPv4 only: network.ipv6 is for pods, Services and ports of the host", d)
	}
	if d := c.Ports.Driver; c.Network.IPv6 && (d == config.DriverSlirp || d == config.DriverGvisor) {
		n.warn("ports.driver %s forwards IPv4 only: with network.ipv6, ports.driver builtin forwards both", d)
	}
}

// offline makes the device of the network with nothing behind it: one end of a pair whose other end is up and leads
// nowhere. The node's CNI plugins need the same kind of device anyway, and what is sent to the gateway is answered with
// "no route to host" and not swallowed.
type offline struct{}

// offlineEnd is the other end.
const offlineEnd = "nowhere0"

func (offline) ConfigureNetworkChild(msg *messages.ParentInitNetworkDriverCompleted, _ string) (string, error) {
	err := common.Execs(os.Stderr, os.Environ(), [][]string{
		{"ip", "link", "add", msg.Dev, "type", "veth", "peer", "name", offlineEnd},
		{"ip", "link", "set", offlineEnd, "up"},
	})
	if err != nil {
		return "", fmt.Errorf("make the device %s: %w", msg.Dev, err)
	}
	return msg.Dev, nil
}

func (offline) ChildDriverInfo() (*network.ChildDriverInfo, error) {
	return &network.ChildDriverInfo{}, nil
}
