// Package noderole implements the node role: it prepares RootlessKit's namespaces for the components, supervises the
// components, connects them to the cluster and to the host's ports, and serves status and exec.
//
// The package does not access anything outside the namespaces except the node's own directories on the host: the data
// dir and the runtime dir with RootlessKit's API socket.
//
// Runs in: child.
package noderole

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sync/errgroup"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/apiserver"
	"github.com/rootlessnode/rootlessnode/internal/component/catalogue"
	"github.com/rootlessnode/rootlessnode/internal/component/kubelet"
	"github.com/rootlessnode/rootlessnode/internal/component/pki"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/specfilter"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
	"github.com/rootlessnode/rootlessnode/pkg/copyup"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// nodeRole is one run of the node role.
type nodeRole struct {
	log      *logrus.Logger
	cfg      *config.NodeConfig
	rt       layout.Runtime
	data     layout.Data
	handover layout.HandoverInfo
	files    copyup.Spec
	ipv6     netip.Addr // the node's address if network.ipv6 is set
	tree     cgroupv2.Tree
	env      component.Env
	hub      *status.Hub
	group    *supervisor.Group
	stop     context.CancelCauseFunc

	api     *kubeapi.Client
	apiOnce sync.Once
	apiErr  error
	// claims maps the name of a node to the UID of the certificate request for which the approver reserved the name.
	claims map[string]string
	ports  portConfig
	// hostAccess is nil if the node may use the host's own addresses.
	hostAccess *hostAccess
	address    nodeAddress
	events     sync.WaitGroup // Events that are being sent to the API server
	pods       podsProgress
}

// Options are what the child passes to the node role.
type Options struct {
	// Config is the effective configuration.
	Config *config.NodeConfig
	// Runtime is the node's runtime directory.
	Runtime layout.Runtime
	// Handover has the parent's settings, completed with the child's network settings.
	Handover layout.HandoverInfo
	// FileSystem is the specification of the file system that the child has set up.
	FileSystem copyup.Spec
	// Version is the version of rootlessnode.
	Version string
	Log     *logrus.Logger
}

// Run prepares the namespaces, renders and supervises the components, and serves status and exec until SIGTERM, SIGINT,
// SIGHUP or a stop request on the status socket.
func Run(o Options) error {
	n := &nodeRole{
		log: o.Log, cfg: o.Config, rt: o.Runtime, data: layout.NewData(o.Config.DataDir), handover: o.Handover,
		files: o.FileSystem, tree: cgroupv2.Tree{Root: layout.InsideCgroup},
	}
	return n.run(o.Version)
}

func (n *nodeRole) run(version string) error {
	n.hub = status.NewHub(n.initialStatus(version), status.Options{})
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer stop()
	ctx, n.stop = context.WithCancelCause(ctx)
	defer n.stop(nil)
	if _, err := n.tree.EnsureLeaf(leaf("node")); err != nil {
		return err
	}
	if err := n.setUp(); err != nil {
		return err
	}
	if err := n.prepare(ctx); err != nil {
		return err
	}
	units, err := n.units()
	if err != nil {
		return err
	}
	n.group, err = supervisor.New(units, supervisor.Options{Log: n.log, OnTransition: n.transition})
	if err != nil {
		return err
	}
	return n.serve(ctx)
}

// serve runs the sockets and the components. The sockets stay open until the components have stopped, so that clients
// can watch the stop.
func (n *nodeRole) serve(ctx context.Context) error {
	sockets, closeSockets := context.WithCancel(context.Background())
	defer closeSockets()
	servers, err := n.startServers(sockets)
	if err != nil {
		return err
	}
	for _, u := range n.group.Status() { // waiting units have had no transition yet
		n.hub.SetComponent(componentStatus(u), nil)
	}
	context.AfterFunc(ctx, func() { n.hub.SetStopping(stopReason(ctx)) })
	err = n.group.Run(ctx)
	n.events.Wait()
	n.removeLeftovers()
	if err != nil {
		n.hub.SetFailed(err.Error())
		err = errdefs.Class(errdefs.ErrComponent, err)
	} else {
		n.hub.SetStopped()
	}
	n.hub.Close()
	closeSockets()
	return errors.Join(err, servers.Wait())
}

// stopReason returns the reason why ctx ended.
func stopReason(ctx context.Context) string {
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause.Error()
	}
	return "signal"
}

// initialStatus returns the node's status before any component runs.
func (n *nodeRole) initialStatus(version string) status.Status {
	h := n.handover
	s := status.Status{
		Name: n.cfg.Name, NodeName: n.cfg.NodeName, Version: version, Kubernetes: kubernetesVersion(n.cfg.ComponentsDir),
		StartedAt: h.StartedAt, ParentPID: h.ParentPID, ChildPID: h.ChildPID,
		Network: status.Network{
			Driver: h.Network.Driver, Interface: h.Network.Interface, Address: h.Network.IP, MTU: h.Network.MTU, DNS: h.Network.DNS,
			PortDriver: h.Network.Ports, PortDriverReason: h.Network.PortsWhy,
		},
		Kubeconfig: n.data.AdminKubeconfig(), DataDir: n.data.Dir, RuntimeDir: n.rt.Dir,
		Cgroup: status.Cgroup{
			Path: h.Cgroup.Path, Controllers: h.Cgroup.Enabled, Unenforced: h.Cgroup.Unenforced,
			Ceiling: h.Cgroup.Ceiling, UnenforcedSettings: unenforcedSettings(n.cfg, h.Cgroup),
		},
		Conditions: []status.Condition{{Type: status.ConditionNodeReady, Reason: "Starting", Message: "the Node object is not Ready yet"}},
	}
	return s
}

// warn logs a warning and adds it to the status.
func (n *nodeRole) warn(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	n.log.Warn(text)
	n.hub.Update(func(s *status.Status) { s.Warnings = append(s.Warnings, text) })
}

// prepare collects the data for rendering, creates keys and certificates, and writes the admin kubeconfig.
func (n *nodeRole) prepare(ctx context.Context) error {
	n.warnUnenforced()
	n.warnDrivers()
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("read the host name: %w", err)
	}
	servers := n.cfg.Network.NameServers
	if len(servers) == 0 {
		servers = n.handover.Network.DNS
	}
	n.env = component.Env{
		Config: n.cfg, HostName: host, NodeIP: n.handover.Network.IP,
		APIServerURL: fmt.Sprintf("https://127.0.0.1:%d", n.cfg.Inside.APIServerPort),
		TapInterface: n.handover.Network.Interface, TapMTU: n.handover.Network.MTU,
		NameServers: servers, BinDir: n.binary, OCIRuntime: n.binary("runc"),
		Controllers: n.handover.Cgroup.Enabled, Unenforced: n.handover.Cgroup.Unenforced,
		Ceiling:                       n.cfg.Resources.Limits().Least(n.handover.Cgroup.Ceiling),
		LocalStorageCapacityIsolation: supportsStorageStats(layout.InsideKubelet),
	}
	if n.env.Machine, err = hostinfo.ReadMachine("/"); err != nil {
		n.warn("the node's allocatable resources may be wrong: %v", err)
	}
	if err := removeManagerState(layout.InsideKubelet); err != nil {
		return err
	}
	if n.ipv6.IsValid() {
		n.env.NodeIPv6 = n.ipv6.String()
		n.hub.Update(func(s *status.Status) { s.Network.AddressIPv6 = n.env.NodeIPv6 })
	}
	if err := n.readNodeAddress(); err != nil {
		return err
	}
	var g errgroup.Group
	if n.cfg.Joins() {
		n.env.APIServerURL = n.cfg.Join.Server
	} else {
		env := n.env // a copy, because the other goroutines write to n.env
		g.Go(func() error { return n.certificates(env) })
	}
	g.Go(n.detectRuntime)
	g.Go(func() error { return n.startHostFilter(ctx) })
	g.Go(func() error { n.env.SeccompDefault = n.seccompDefault(ctx); return nil })
	g.Go(func() (err error) { n.env.KubeProxyMode, err = n.proxyMode(ctx); return })
	if err := g.Wait(); err != nil {
		return err
	}
	if err := n.ociShim(); err != nil {
		return err
	}
	n.hub.Update(func(s *status.Status) { s.APIServer = apiserver.HostURL(n.env) }) // on a worker, the API server of the joined cluster
	// The last run's CNI configuration would make the Node Ready before flannel has set up routes.
	if err := os.Remove(layout.InsideCNIConfFile); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove the last run's CNI configuration: %w", err)
	}
	return nil
}

// certificates creates or renews the control plane's keys and certificates, and writes the admin kubeconfigs.
func (n *nodeRole) certificates(env component.Env) error {
	spec, err := catalogue.Spec(env)
	if err != nil {
		return err
	}
	changes, err := pki.Ensure(layout.InsidePKI, spec, time.Now())
	if err != nil {
		return err
	}
	if len(changes.Renewed) > 0 {
		n.log.WithField("certificates", changes.Renewed).Info("certificates renewed")
	}
	admin, err := apiserver.AdminKubeconfig(env, layout.InsidePKI)
	if err != nil {
		return err
	}
	inside, err := pki.FileKubeconfig(apiserver.Admin, env.APIServerURL, apiserver.ClusterName(env))
	if err != nil {
		return err
	}
	return component.Write([]component.File{
		{Path: n.data.AdminKubeconfig(), Mode: 0o600, Data: admin},
		{Path: insideAdmin, Mode: 0o600, Data: inside},
	})
}

// insideAdmin is the admin kubeconfig for programs inside.
const insideAdmin = layout.InsideKubernetes + "/admin.conf"

// binary returns the path of a component's program.
func (n *nodeRole) binary(name string) string { return filepath.Join(n.cfg.ComponentsDir, name) }

// shimProgram runs runc without the limits that cannot be set.
const shimProgram = "rootlessnode-runc"

// ociShim configures the OCI runtime shim if a cgroup controller is missing, because runc refuses containers whose
// limits it cannot set.
func (n *nodeRole) ociShim() error {
	drop := slices.DeleteFunc(append(cgroupv2.Wanted(), cgroupv2.Optional()...), func(c string) bool {
		return slices.Contains(n.handover.Cgroup.Enabled, c)
	})
	if len(drop) == 0 {
		return nil
	}
	shim := n.binary(shimProgram)
	if _, err := exec.LookPath(shim); err != nil {
		return errdefs.WithHint(errdefs.Class(errdefs.ErrPreflight, fmt.Errorf("find the OCI runtime shim: %w", err)),
			"make build")
	}
	n.env.OCIRuntime = shim
	return component.Write([]component.File{{Path: layout.InsideOCIShim, Mode: 0o600, Data: specfilter.Config{
		Runc: n.binary("runc"), Drop: drop,
		Cgroup: specfilter.Move{From: n.runtimeCgroup(), To: kubelet.PodCgroup},
	}.Render()}})
}

// containerdNamespace is the containerd namespace of the kubelet's containers, and the default name of their cgroup.
const containerdNamespace = "k8s.io"

// client returns the node role's client of the API server, which it creates on the first call.
func (n *nodeRole) client() (*kubeapi.Client, error) {
	n.apiOnce.Do(func() {
		n.api, n.apiErr = kubeapi.New(insideAdmin, kubeapi.Options{UserAgent: "rootlessnode", Log: n.log})
	})
	return n.api, n.apiErr
}
