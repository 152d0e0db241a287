// Package portdriver is RootlessKit's builtin port driver with another TCP and UDP side, which releases everything that a connection
// or a port has used. RootlessKit 3.3.0 keeps a connection for ever whose client has left while the server says nothing, or
// that it accepts while its port is removed, and it stops accepting when it runs out of descriptors. Here an idle connection
// costs two descriptors, and the descriptors of the process are divided among the ports (limits). The protocol between the
// two sides is RootlessKit's, by its exported packages. It opens no port by itself.
//
// It refuses clients of TCP and UDP by their address where SetSources says so.
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

// Sources says what becomes of the address of a TCP client that is not on the host's loopback.
type Sources int

const (
	// SourcesHidden: every connection comes from the node.
	SourcesHidden Sources = iota
	// SourcesKept: the connection has the client's address where the kernel allows it, and else the node's.
	SourcesKept
	// SourcesKeptOrRefused: a client is refused whose address cannot be kept. RootlessKit's child side, when a connection with the
	// client's address fails, makes another one with the node's own: a client that a packet filter turns away would come in as
	// the node.
	SourcesKeptOrRefused
)

// Options for New. Log and StateDir are required.
type Options struct {
	Log io.Writer
	// StateDir is RootlessKit's.
	StateDir string
	Sources  Sources
	// Held are listening sockets that the service manager opened for us (sd_listen_fds(3)). A port at the address of one is
	// not bound but taken over from it: who connects while the port is not there waits in its queue, and while nobody answers
	// in the node for some minutes more. They stay the caller's.
	Held []*net.TCPListener
	// Essential reports whether a port gets its descriptors from a part of its own, so that it has some left whatever
	// happens to the others. Nil: no port does.
	Essential func(port.Spec) bool
	// OnFaults is called with all faults there are when they have changed, from one goroutine, and again after a while if it
	// returns an error. Nil: nothing is reported.
	OnFaults func([]Fault) error
	// Descriptors is how many this process may open; 0 for what setrlimit(2) says.
	Descriptors int
}

// New returns the driver. NewChild is the child's side that goes with it; RootlessKit's builtin.NewChildDriver does too. Errors
// are the builtin driver's; a refused port can also be told apart by errors.Is with the error number of bind(2).
func New(o Options) (port.ParentDriver, error) {
	inner, err := builtin.NewParentDriver(o.Log, o.StateDir, o.Sources != SourcesHidden, "auto")
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
		held: o.Held, strict: o.Sources == SourcesKeptOrRefused, ports: map[int]*port.Status{}, stops: map[int]func(context.Context) error{},
		limits: newLimits(o.Descriptors), essential: o.Essential, monitor: newMonitor(o.OnFaults),
	}, nil
}

// driver numbers all ports itself; the builtin driver has numbers of its own for those that it holds.
type driver struct {
	port.ParentDriver
	socket string
	log    io.Writer
	// sources are who may connect; the list comes by sourcesSocket.
	sources       sourceTable
	sourcesSocket string
	held          []*net.TCPListener
	strict        bool // a client is refused whose address is not kept

	limits    limits
	essential func(port.Spec) bool
	monitor   *monitor
	watch     *relay.Watch // while RunParentDriver runs

	mu    sync.Mutex
	last  int
	ports map[int]*port.Status
	stops map[int]func(context.Context) error
}

// RunParentDriver closes all ports when it ends.
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
	d.watch = nil // no more ports
	d.mu.Unlock()
	all, _ := d.ListPorts(context.Background()) // never fails
	for _, st := range all {
		errs = append(errs, d.RemovePort(context.Background(), st.ID))
	}
	close(stop)
	monitored.Wait()
	return errors.Join(errs...)
}

// shareFor returns a new port's part of the descriptors.
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
	told := st
	return &told, nil
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
	// A privileged port: the builtin driver is refused too, and says what to do in the words that people know. One that it
	// opens all the same would have no guard.
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
		share.Give(perPort)
		return nil, err
	}
	return func(ctx context.Context) error {
		defer share.Give(perPort)
		defer forget()
		return f.close(ctx)
	}, nil
}

// listenAt is where a port listens, in the words of package net. To net.Listen, tcp on 0.0.0.0 is [::] too.
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

// RemovePort ends the port's open connections, as the builtin driver does, and returns when nothing of them is left.
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
