// Package portdriver is RootlessKit's builtin port driver with a TCP side of our own, which lets go of everything that a
// port held when the port is removed. RootlessKit 3.3.0 keeps a connection for ever that it accepts at that moment: its
// client hangs, and the parent loses a descriptor and a goroutine. UDP, the child's side and the protocol between the two
// are RootlessKit's, by its exported packages. It opens no port by itself.
//
// Runs in: parent.
package portdriver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"sync"

	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
	"github.com/rootless-containers/rootlesskit/v3/pkg/port/builtin"
	"github.com/rootless-containers/rootlesskit/v3/pkg/port/builtin/opaque"
	"github.com/rootless-containers/rootlesskit/v3/pkg/port/portutil"
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

// New returns the driver. The child's side that goes with it is RootlessKit's builtin.NewChildDriver. Errors are the builtin driver's; a refused port can also be told apart by errors.Is with
// the error number of bind(2).
//
// held are listening sockets that the service manager opened for us (sd_listen_fds(3)). A port at the address of one is not
// bound but taken over from it: who connects while the port is not there waits in its queue, and while nobody answers in the
// node for some minutes more. They stay the caller's.
func New(log io.Writer, stateDir string, sources Sources, held ...*net.TCPListener) (port.ParentDriver, error) {
	inner, err := builtin.NewParentDriver(log, stateDir, sources != SourcesHidden, "auto")
	if err != nil {
		return nil, err
	}
	return &driver{
		ParentDriver: inner, socket: inner.OpaqueForChild()[opaque.SocketPath], log: log,
		held: held, strict: sources == SourcesKeptOrRefused, ports: map[int]*port.Status{}, stops: map[int]func(context.Context) error{},
	}, nil
}

// driver numbers all ports itself; the builtin driver has numbers of its own for those that it holds.
type driver struct {
	port.ParentDriver
	socket string
	log    io.Writer
	held   []*net.TCPListener
	strict bool // a client is refused whose address is not kept

	mu    sync.Mutex
	last  int
	ports map[int]*port.Status
	stops map[int]func(context.Context) error
}

// RunParentDriver closes all ports when it ends.
func (d *driver) RunParentDriver(ready chan struct{}, quit <-chan struct{}, c *port.ChildContext) error {
	errs := []error{d.ParentDriver.RunParentDriver(ready, quit, c)}
	all, _ := d.ListPorts(context.Background()) // never fails
	for _, st := range all {
		errs = append(errs, d.RemovePort(context.Background(), st.ID))
	}
	return errors.Join(errs...)
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
	if strings.HasPrefix(spec.Proto, "tcp") {
		f, err := d.listen(spec)
		if err == nil {
			return f.close, nil
		}
		if !errors.Is(err, fs.ErrPermission) {
			return nil, err
		}
		// A privileged port: the builtin driver is refused too, and says what to do in the words that people know.
	}
	st, err := d.ParentDriver.AddPort(ctx, spec)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error { return d.ParentDriver.RemovePort(ctx, st.ID) }, nil
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
