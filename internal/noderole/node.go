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
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/kubelet"
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/preflight"
	"github.com/rootlessnode/rootlessnode/internal/runtime"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
	"github.com/rootlessnode/rootlessnode/pkg/copyup"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// nodeRole is one run of the node role. Its fields are set before the components start, and are read-only afterwards.
type nodeRole struct {
	programs

	log      *logrus.Logger
	cfg      *config.NodeConfig
	runtime  runtime.Runtime
	rt       layout.Runtime
	data     layout.Data
	handover layout.HandoverInfo
	files    copyup.Spec
	tree     cgroupv2.Tree
	env      component.Env
	// components are those of the catalogue that the node has.
	components []component.Component
	hub        *status.Hub
	group      *supervisor.Group
	stop       context.CancelCauseFunc

	client     clientFunc
	address    *nodeAddress
	ports      *portConfig
	hostAccess *hostAccess // nil if the node may use the host's own addresses
	events     *eventRecorder
	pods       *podsProgress
	datastore  *datastoreWatch // nil on a worker
	reloader   reloader
	// podLimit limits the time for the stop of the pods, in nanoseconds, if it is not 0. A stop request sets it.
	podLimit atomic.Int64
}

// clientFunc returns the node role's client of the API server. It returns an error before the admin kubeconfig exists.
type clientFunc func() (*kubeapi.Client, error)

// Options are the arguments of the node role, which the child sets.
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
	cfg, data := o.Config, layout.NewData(o.Config.DataDir)
	n := &nodeRole{
		programs: programs{dirs: preflight.ProgramDirs(cfg), nodeName: cfg.NodeName},
		log:      o.Log, cfg: cfg, runtime: runtime.Of(cfg), rt: o.Runtime, data: data, handover: o.Handover, files: o.FileSystem,
		tree:    cgroupv2.Tree{Root: layout.InsideCgroup},
		hub:     status.NewHub(initialStatus(o), status.Options{}),
		address: &nodeAddress{path: o.Runtime.NodeAddress()},
		client: sync.OnceValues(func() (*kubeapi.Client, error) {
			return kubeapi.New(insideAdmin, kubeapi.Options{UserAgent: "rootlessnode", Log: o.Log})
		}),
	}
	n.ports = &portConfig{cfg: cfg, rt: o.Runtime, data: data, log: o.Log, address: n.address}
	n.events = &eventRecorder{client: n.client, host: cfg.NodeName, timeout: cfg.Timeouts.Health.D(), log: o.Log}
	n.pods = &podsProgress{hub: n.hub}
	n.reloader.cfg = cfg
	return n.run()
}

func (n *nodeRole) run() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	defer stop()
	ctx, n.stop = context.WithCancelCause(ctx)
	defer n.stop(nil)
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
	n.events.wait()
	removeLeftovers(n.tree, n.log, n.runtime)
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
func initialStatus(o Options) status.Status {
	cfg, h, data := o.Config, o.Handover, layout.NewData(o.Config.DataDir)
	var ends time.Time
	if h.TTL > 0 {
		ends = h.StartedAt.Add(h.TTL)
	}
	return status.Status{
		Name: cfg.Name, NodeName: cfg.NodeName, Version: o.Version, Kubernetes: kubernetesVersion(cfg),
		StartedAt: h.StartedAt, EndsAt: ends, ParentPID: h.ParentPID, ChildPID: h.ChildPID,
		Network: status.Network{
			Driver: h.Network.Driver, Interface: h.Network.Interface, Address: h.Network.IP, MTU: h.Network.MTU, DNS: h.Network.DNS,
			PortDriver: h.Network.Ports, PortDriverReason: h.Network.PortsWhy,
		},
		Kubeconfig: data.AdminKubeconfig(), DataDir: data.Dir, RuntimeDir: o.Runtime.Dir,
		Cgroup: status.Cgroup{
			Path: h.Cgroup.Path, Controllers: h.Cgroup.Enabled, Unenforced: h.Cgroup.Unenforced,
			Ceiling: h.Cgroup.Ceiling, UnenforcedSettings: unenforcedSettings(cfg, h.Cgroup),
		},
		Conditions: []status.Condition{{Type: status.ConditionNodeReady, Reason: "Starting", Message: "the Node object is not Ready yet"}},
	}
}

// warn logs the warnings and adds them to the status.
func (n *nodeRole) warn(texts ...string) {
	for _, text := range texts {
		n.log.Warn(text)
	}
	if len(texts) > 0 {
		n.hub.Update(func(s *status.Status) { s.Warnings = append(s.Warnings, texts...) })
	}
}

// kubernetesVersion returns the version of the bundled kubelet, or "" if the manifest does not contain it.
func kubernetesVersion(cfg *config.NodeConfig) string {
	m, err := preflight.ManifestOf(cfg)
	if err != nil {
		return ""
	}
	c, _ := m.Component(kubelet.Name)
	return c.Version
}
