// Package portdriver is RootlessKit's builtin port driver with a different implementation of TCP and UDP, which releases all
// resources of connections and ports. RootlessKit 3.3.0 never closes a connection whose client has left while the server
// sends nothing, or that it accepts while its port is being removed, and it stops accepting connections when it runs out of
// descriptors. In this driver, an idle connection uses two descriptors, and the descriptors of the process are divided among
// the ports (limits). The protocol between the two sides is RootlessKit's, from its exported packages. The driver opens no
// port by itself.
//
// It rejects TCP and UDP clients by their address as configured with SetSources.
//
// Runs in: parent; NewChild in the child.
package portdriver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
	"github.com/rootless-containers/rootlesskit/v3/pkg/port/builtin"
	"github.com/rootless-containers/rootlesskit/v3/pkg/port/builtin/opaque"
	"github.com/rootless-containers/rootlesskit/v3/pkg/port/portutil"

	"github.com/rootlessnode/rootlessnode/internal/relay"
)

// Sources defines how the address of a TCP client is handled that is not on the host's loopback.
type Sources int

const (
	// SourcesHidden means that every connection has the node's address as its source.
	SourcesHidden Sources = iota
	// SourcesKept means that the connection has the client's address if the kernel allows it, otherwise the node's.
	SourcesKept
	// SourcesKeptOrRefused rejects a client whose address cannot be kept. When a connection with the client's address fails,
	// RootlessKit's child side makes another one with the node's address, so a client that a packet filter rejects would
	// appear as the node.
	SourcesKeptOrRefused
)

// Options are the arguments of New. Log and StateDir are required.
type Options struct {
	Log io.Writer
	// StateDir is RootlessKit's state directory.
	StateDir string
	Sources  Sources
	// Inherited are listening sockets that the service manager opened for this process (sd_listen_fds(3)). A port with the
	// address of one is not bound; it uses the inherited socket. Clients that connect while the port is closed wait in the
	// socket's queue, and some minutes longer while no program listens in the node. The caller keeps ownership of the
	// sockets.
	Inherited []*net.TCPListener
	// Essential reports whether a port uses a separate part of the descriptors, so that it always has some regardless of
	// other ports. If it is nil, no port is essential.
	Essential func(port.Spec) bool
	// OnFaults is called with all current faults when they change, from one goroutine, and again later if it returns an
	// error. If it is nil, faults are not reported.
	OnFaults func([]Fault) error
	// Descriptors is the number of descriptors that this process may open; 0 means the limit of setrlimit(2).
	Descriptors int
}

// New returns the driver. Its child side is NewChild; RootlessKit's builtin.NewChildDriver works too. Errors are those of
// the builtin driver. The reason for a refused port can also be checked with errors.Is and the errno of bind(2).
func New(o Options) (port.ParentDriver, error) {
	// The builtin driver only opens ports to be refused, and returns its errors too.
	inner, err := builtin.NewParentDriver(io.Discard, o.StateDir, o.Sources != SourcesHidden, "auto")
	if err != nil {
		return nil, err
	}
	if o.Descriptors == 0 {
		if o.Descriptors, err = relay.Limit(); err != nil {
			return nil, err
		}
	}
	return &driver{
		ParentDriver: inner, sourcesSocket: SourcesSocket(o.StateDir), socket: inner.OpaqueForChild()[opaque.SocketPath], log: o.Log,
		inherited: o.Inherited, strict: o.Sources == SourcesKeptOrRefused, ports: map[int]*port.Status{}, stops: map[int]func(context.Context) error{},
		limits: newLimits(o.Descriptors), essential: o.Essential, monitor: newMonitor(o.OnFaults),
	}, nil
}

// driver numbers all ports itself. The builtin driver has other numbers for the ports that it opens.
type driver struct {
	port.ParentDriver
	socket string
	log    io.Writer
	// sources are the allowed clients; the list is received on sourcesSocket.
	sources       sourceTable
	sourcesSocket string
	inherited     []*net.TCPListener
	strict        bool // reject clients whose address cannot be kept

	limits    limits
	essential func(port.Spec) bool
	monitor   *monitor
	watch     *relay.Watch // set while RunParentDriver runs

	mu    sync.Mutex
	last  int
	ports map[int]*port.Status
	stops map[int]func(context.Context) error
}

// RunParentDriver runs the driver. It closes all ports when it ends.
func (d *driver) RunParentDriver(ready chan struct{}, quit <-chan struct{}, c *port.ChildContext) error {
	l, err := listenForSources(d.sourcesSocket)
	if err != nil {
		return err
	}
	watch, err := relay.NewWatch()
	if err != nil {
		return errors.Join(err, l.Close())
	}
	defer watch.Close()
	d.mu.Lock()
	d.watch = watch
	d.mu.Unlock()
	stop := make(chan struct{})
	var monitored sync.WaitGroup
	monitored.Go(func() { d.monitor.run(stop) })
	var serving sync.WaitGroup
	serving.Go(func() { d.sources.serveSources(l, d.log) })
	errs := []error{d.ParentDriver.RunParentDriver(ready, quit, c)}
	errs = append(errs, l.Close())
	serving.Wait()
	d.mu.Lock()
	d.watch = nil // no further ports
	d.mu.Unlock()
	all, _ := d.ListPorts(context.Background()) // never fails
	for _, st := range all {
		errs = append(errs, d.RemovePort(context.Background(), st.ID))
	}
	close(stop)
	monitored.Wait()
	return errors.Join(errs...)
}

// shareFor returns the share of descriptors for a new port.
func (d *driver) shareFor(spec port.Spec) *relay.Share {
	if d.essential != nil && d.essential(spec) {
		return d.limits.essential.Share()
	}
	return d.limits.others.Share()
}

func (d *driver) AddPort(ctx context.Context, spec port.Spec) (*port.Status, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := portutil.ValidatePortSpec(spec, d.ports); err != nil {
		return nil, err
	}
	stop, err := d.open(ctx, spec)
	if err != nil {
		return nil, err
	}
	d.last++
	st := port.Status{ID: d.last, Spec: spec}
	d.ports[st.ID], d.stops[st.ID] = &st, stop
	result := st
	return &result, nil
}

func (d *driver) open(ctx context.Context, spec port.Spec) (stop func(context.Context) error, err error) {
	if d.watch == nil {
		return nil, errors.New("the port driver is not running")
	}
	var listen func(port.Spec) (func(context.Context) error, error)
	switch {
	case strings.HasPrefix(spec.Proto, "tcp"):
		listen = func(spec port.Spec) (func(context.Context) error, error) {
			f, err := d.listen(spec)
			if err != nil {
				return nil, err
			}
			return f.close, nil
		}
	case strings.HasPrefix(spec.Proto, "udp"):
		listen = d.listenUDP
	}
	if listen != nil {
		stop, err = listen(spec)
		if err == nil || !errors.Is(err, fs.ErrPermission) {
			return stop, err
		}
	}
	// A privileged port: the builtin driver is refused too, and its error is the well-known one with a hint. If it can open
	// the port, the port is closed again, because it would have no guard.
	st, refusal := d.ParentDriver.AddPort(ctx, spec)
	if refusal != nil {
		return nil, refusal
	}
	return nil, errors.Join(err, d.ParentDriver.RemovePort(ctx, st.ID))
}

func (d *driver) listenUDP(spec port.Spec) (stop func(context.Context) error, err error) {
	network, address := listenAt(spec)
	share := d.shareFor(spec)
	if !share.Take(perPort, 1) {
		return nil, fmt.Errorf("listen on %s: %w", address, syscall.EMFILE)
	}
	guard, forget := d.sources.open(spec)
	f, err := listenUDP(network, address, &udpForward{
		spec: spec, socket: d.socket, guard: guard, share: share, log: d.log, limit: udpSessions, idle: udpIdle,
	})
	if err != nil {
		forget()
		share.Release(perPort)
		return nil, err
	}
	return func(ctx context.Context) error {
		defer share.Release(perPort)
		defer forget()
		return f.close(ctx)
	}, nil
}

// listenAt returns network and address for package net. A net.Listen with tcp on 0.0.0.0 would listen on [::] too.
func listenAt(spec port.Spec) (network, address string) {
	network = spec.Proto
	if ip, err := netip.ParseAddr(spec.ParentIP); err == nil && ip.Is4() {
		network = spec.Proto[:3] + "4"
	}
	return network, net.JoinHostPort(spec.ParentIP, strconv.Itoa(spec.ParentPort))
}

func (d *driver) ListPorts(context.Context) ([]port.Status, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var all []port.Status
	for _, st := range d.ports {
		all = append(all, *st)
	}
	return all, nil
}

// RemovePort closes the port and its open connections, like the builtin driver, and returns when all are closed.
func (d *driver) RemovePort(ctx context.Context, id int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	stop, there := d.stops[id]
	if !there {
		return fmt.Errorf("unknown id: %d", id)
	}
	delete(d.stops, id)
	delete(d.ports, id)
	return stop(ctx)
}
