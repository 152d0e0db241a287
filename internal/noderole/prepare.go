package noderole

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/apiserver"
	"github.com/rootlessnode/rootlessnode/internal/component/catalogue"
	"github.com/rootlessnode/rootlessnode/internal/component/kubelet"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/runtime"
	"github.com/rootlessnode/rootlessnode/internal/specfilter"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// prepare sets up the namespaces, detects what rendering needs, creates keys and certificates, and loads the filter for
// the host's addresses.
func (n *nodeRole) prepare(ctx context.Context) error {
	if _, err := n.tree.EnsureLeaf(leaf("node")); err != nil {
		return err
	}
	ipv6, warnings, err := setUp(n.cfg, n.tree, n.handover.Network)
	n.warn(warnings...)
	if err != nil {
		return err
	}
	n.ports.ipv6 = ipv6
	n.warn(slices.Concat(unenforcedTexts(n.cfg, n.handover.Cgroup), driverWarnings(n.cfg, n.handover.Network), proxyWarnings(n.cfg))...)
	if n.cfg.MultiNode() {
		if err := n.address.read(); err != nil {
			return err
		}
	}
	if n.handover.Network.DNS, err = allNameServers(n.cfg, n.handover.Network, n.rt); err != nil {
		return err
	}
	given, err := givenEnv(n.cfg, n.handover, ipv6, n.address.current(), n.rt.Dir, n.binary)
	if err != nil {
		return err
	}
	given.StatusSocket = n.rt.NodeSocket()
	n.hub.Update(func(s *status.Status) {
		s.Network.AddressIPv6, s.Network.NodeAddress, s.Network.DNS = given.NodeIPv6, given.PublicIP, n.handover.Network.DNS
	})
	if n.proxies, err = proxyEnv(given); err != nil {
		return err
	}
	if err := removeManagerState(layout.InsideKubelet); err != nil {
		return err
	}
	var detected, filtered, unblocked []string
	var g errgroup.Group
	g.Go(func() (err error) { n.env, detected, err = detect(ctx, given); return err })
	g.Go(func() (err error) {
		n.hostAccess, filtered, err = startHostAccess(ctx, n.cfg, n.handover.Network, n.rt.HostAddresses(), n.log)
		return err
	})
	g.Go(func() error { unblocked = blockServiceRanges(ctx, n.cfg); return nil })
	if !n.cfg.Joins() {
		g.Go(func() error {
			changes, err := ownCertificates{given, n.data.AdminKubeconfig()}.create(time.Now())
			if len(changes.Renewed) > 0 {
				n.log.WithField("certificates", changes.Renewed).Info("certificates renewed")
			}
			return err
		})
	}
	err = g.Wait()
	n.warn(slices.Concat(detected, filtered, unblocked)...)
	if err != nil {
		return err
	}
	changed, err := recordIdentity(n.env, n.data)
	n.warn(changed...)
	if err != nil {
		return err
	}
	n.components = slices.DeleteFunc(catalogue.Enabled(n.cfg), func(c component.Component) bool { return c.When != nil && !c.When(n.env) })
	if n.env.OCIRuntime == n.binary(shimProgram) || len(n.env.OCIRuntimes) > 0 {
		if err := errors.Join(component.Write([]component.File{ociShim(n.env, n.runtime.Cgroup())}), linkOCIShims(n.env)); err != nil {
			return err
		}
	}
	n.hub.Update(func(s *status.Status) { s.APIServer = apiserver.HostURL(n.env) }) // on a worker, the API server of the joined cluster
	// The last run's CNI configuration would make the Node Ready before flannel has set up routes.
	if err := os.Remove(layout.InsideCNIConfFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the last run's CNI configuration: %w", err)
	}
	return nil
}

// allNameServers adds the host's further name servers to that of the network driver.
func allNameServers(cfg *config.NodeConfig, network layout.NetworkInfo, rt layout.Runtime) ([]string, error) {
	var host hostinfo.Resolver
	if err := layout.ReadJSON(rt.HostResolver(), &host); err != nil {
		return nil, fmt.Errorf("read the host's resolver configuration: %w", err)
	}
	return nameServers(cfg, network, host), nil
}

// givenEnv returns the data for rendering that the config and the handover contain.
func givenEnv(cfg *config.NodeConfig, h layout.HandoverInfo, ipv6, address netip.Addr, runtimeDir string, binary func(string) string) (component.Env, error) {
	host, err := os.Hostname()
	if err != nil {
		return component.Env{}, fmt.Errorf("read the host name: %w", err)
	}
	e := component.Env{
		Config: cfg, HostName: host, NodeIP: h.Network.IP, NodeIPv6: textOf(ipv6), PublicIP: textOf(address),
		APIServerURL: fmt.Sprintf("https://127.0.0.1:%d", cfg.Inside.APIServerPort),
		TapInterface: h.Network.Interface, TapMTU: h.Network.MTU, NameServers: cfg.Network.NameServers, BinDir: binary,
		Controllers: h.Cgroup.Enabled, Unenforced: h.Cgroup.Unenforced,
		Ceiling: cfg.Resources.Limits().Least(h.Cgroup.Ceiling),
	}
	if len(e.NameServers) == 0 {
		e.NameServers = h.Network.DNS
	}
	if cfg.Joins() {
		e.APIServerURL = cfg.Join.Server
	}
	if cfg.Kubelet.RegistryLogins {
		e.Credentials, err = credentialPlugin(cfg, h.RegistryPorts, runtimeDir)
	}
	return e, err
}

// credentialPlugin returns the kubelet's plugin for logins at registries, which is the program of this process.
func credentialPlugin(cfg *config.NodeConfig, ports []int, runtimeDir string) (*component.CredentialPlugin, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the program of the node role: %w", err)
	}
	if strings.Contains(filepath.Base(program), " ") {
		return nil, errdefs.Errorf("the kubelet cannot run %q for logins at registries, because its name contains a space", program).
			Hint("# rename the program, or set kubelet.registryLogins: false")
	}
	return &component.CredentialPlugin{Program: program, RuntimeDir: runtimeDir, Ports: slices.Concat(ports, cfg.RegistryPorts())}, nil
}

// textOf returns the address as text, or "" for the zero Addr.
func textOf(ip netip.Addr) string {
	if !ip.IsValid() {
		return ""
	}
	return ip.String()
}

// insideAdmin is the admin kubeconfig for programs inside.
const insideAdmin = layout.InsideKubernetes + "/admin.conf"

// ociShim returns the configuration of the OCI runtime shim.
func ociShim(env component.Env, runtimeCgroup string) component.File {
	c := specfilter.Config{
		Runc: env.BinDir(runtime.OCIProgram), Drop: specfilter.Missing(env.Controllers),
		Cgroup: specfilter.Move{From: runtimeCgroup, To: kubelet.PodCgroup}, Runtimes: map[string]string{},
	}
	for name, r := range env.OCIRuntimes {
		c.Runtimes[name] = r.Path
	}
	return component.File{Path: layout.InsideOCIShim, Mode: 0o600, Data: c.Render()}
}

// linkOCIShims creates the names with which containerd executes the shim for other runtimes than runc.
func linkOCIShims(env component.Env) error {
	if err := os.MkdirAll(layout.InsideOCIShims, 0o700); err != nil {
		return err
	}
	for name := range env.OCIRuntimes {
		if err := os.Symlink(env.BinDir(shimProgram), filepath.Join(layout.InsideOCIShims, name)); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	return nil
}
