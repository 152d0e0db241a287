package portdriver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
	"github.com/rootless-containers/rootlesskit/v3/pkg/port/builtin/msg"

	"github.com/rootlessnode/rootlessnode/internal/relay"
)

const (
	// attempts and pause are the builtin driver's: how often the child is asked for a connection, and by how much longer
	// each time the wait before the next attempt is.
	attempts = 10
	pause    = 5 * time.Millisecond
	// acceptPause is for a listener that cannot accept, most likely for want of descriptors; who connects waits meanwhile.
	acceptPause = 100 * time.Millisecond
	// connectLimit bounds one attempt; a server whose queue is full makes the kernel try for two minutes.
	connectLimit = 30 * time.Second
	// heldAttempts is for held sockets, whose clients may have started the node by connecting: some minutes.
	heldAttempts, heldPause = 3000, 100 * time.Millisecond
)

// forward is one open port.
type forward struct {
	ln     net.Listener
	guard  *guard // of the clients
	forget func() // the guard
	spec   port.Spec
	held   bool
	strict bool   // SourcesKeptOrRefused
	socket string // of the child's side
	log    io.Writer
	ctx    context.Context // of the port; its end ends the connections
	cancel context.CancelFunc
	group  sync.WaitGroup // the listener and all connections
	told   atomic.Bool    // of a fault, since the last connection that was none

	share   *relay.Share // of the descriptors
	pipes   *relay.Pipes
	watch   *relay.Watch
	monitor *monitor
}

func (d *driver) listen(spec port.Spec) (*forward, error) {
	network, address := listenAt(spec)
	share := d.shareFor(spec)
	if !share.Take(perPort, 1) {
		return nil, fmt.Errorf("listen on %s: %w", address, syscall.EMFILE)
	}
	var ln net.Listener
	var err error
	own := slices.IndexFunc(d.held, func(h *net.TCPListener) bool { return h.Addr().String() == address })
	if own >= 0 {
		ln, err = again(d.held[own])
	} else {
		lc := net.ListenConfig{KeepAliveConfig: relay.KeepAlive}
		ln, err = lc.Listen(context.Background(), network, address)
	}
	if err != nil {
		share.Give(perPort)
		return nil, err
	}
	guard, forget := d.sources.open(spec)
	f := &forward{
		ln: ln, guard: guard, forget: forget, spec: spec, held: own >= 0, strict: d.strict, socket: d.socket, log: d.log,
		share: share, pipes: d.limits.pipes, watch: d.watch, monitor: d.monitor,
	}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	f.group.Go(f.accept)
	return f, nil
}

// again returns another descriptor of a listening socket: the socket listens on when it is closed.
func again(l *net.TCPListener) (net.Listener, error) {
	file, err := l.File()
	if err != nil {
		return nil, err
	}
	defer file.Close() // FileListener takes a copy
	return net.FileListener(file)
}

// close is quick: nothing that it waits for outlasts the end of f.ctx.
func (f *forward) close(context.Context) error {
	f.cancel()
	err := f.ln.Close()
	f.group.Wait()
	f.share.Give(perPort)
	f.monitor.forget(f)
	if f.forget != nil {
		f.forget()
	}
	return err
}

// accept takes connections while the port has descriptors for them. The others wait in the kernel's queue.
func (f *forward) accept() {
	for {
		c, err := f.ln.Accept()
		if err == nil {
			if !f.admit() {
				_ = c.Close() // the port was removed
				return
			}
			f.group.Go(func() { defer f.share.Give(perConnection); f.serve(c.(*net.TCPConn)) })
			continue
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
		f.fail(err)
		if !f.wait(acceptPause) {
			return
		}
	}
}

// admit waits until the port may have another connection. It returns false when the port was removed first.
func (f *forward) admit() bool {
	for !f.share.Take(perConnection, 1) {
		f.monitor.short(f, ReasonConnections, fmt.Sprintf("%d connections are open, and no more can be at present: new ones wait",
			(f.share.Used()-perPort)/perConnection))
		if !f.wait(fullPause) {
			return false
		}
	}
	return true
}

// serve copies between c and the node until both directions have ended, the client is gone or the port is removed.
func (f *forward) serve(c *net.TCPConn) {
	defer c.Close()
	ctx, cancel := context.WithCancel(f.ctx)
	defer cancel()
	leave, admitted := f.guard.enter(c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr(), func() { cancel(); _ = c.Close() })
	if !admitted {
		_ = c.SetLinger(0) // a reset, as if nothing listened
		return
	}
	defer leave()
	if f.held {
		_ = c.SetKeepAliveConfig(relay.KeepAlive) // its listener is not ours
	}
	client, err := f.watch.Add(c)
	if err != nil {
		f.fail(err)
		_ = c.SetLinger(0)
		return
	}
	connecting, stop := context.WithCancel(ctx)
	defer stop()
	client.OnGone(stop)
	node, err := f.connect(connecting, c.RemoteAddr())
	if err != nil {
		client.Stop()
		if connecting.Err() == nil {
			f.fail(fmt.Errorf("connect inside: %w", err))
		}
		_ = c.SetLinger(0) // a reset: the client learns that nothing answers
		return
	}
	f.told.Store(false)
	_ = node.SetKeepAliveConfig(relay.KeepAlive) // it has RootlessKit's otherwise
	client.Join(ctx, c, node, f.pipes)
}

// connect asks the child for a connection, several times if need be.
func (f *forward) connect(ctx context.Context, client net.Addr) (*net.TCPConn, error) {
	most, longest := attempts, attempts*pause
	if f.held {
		most, longest = heldAttempts, heldPause
	}
	began := time.Now()
	for i := 1; ; i++ {
		c, err := f.ask(ctx, client)
		switch {
		case err == nil || errors.Is(err, errNotKept):
			return c, err
		case exhausted(err) && time.Since(began) < connectLimit: // the client waits, as it does before it is accepted
			f.fail(err)
			if i--; !pauseFor(ctx, acceptPause) {
				return nil, ctx.Err()
			}
			continue
		case i >= most, !f.held && time.Since(began) >= connectLimit:
			return nil, err
		}
		if !pauseFor(ctx, min(time.Duration(i-1)*pause, longest)) {
			return nil, ctx.Err()
		}
	}
}

// exhausted reports whether err is a lack of descriptors, or a child whose queue is full.
func exhausted(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.EAGAIN)
}

func (f *forward) ask(ctx context.Context, client net.Addr) (*net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	var d net.Dialer
	child, err := d.DialContext(ctx, "unix", f.socket)
	if err != nil {
		return nil, err
	}
	defer child.Close()
	// Not Close: a descriptor that has come already would be lost between the two.
	stop := context.AfterFunc(ctx, func() { _ = child.SetDeadline(time.Unix(0, 1)) })
	defer stop()
	fd, err := msg.ConnectToChild(child.(*net.UnixConn), f.spec, client)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "node")
	defer file.Close() // FileConn takes a copy
	c, err := net.FileConn(file)
	if err != nil {
		return nil, err
	}
	node, ok := c.(*net.TCPConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("the child gave a %T", c), c.Close())
	}
	if f.strict && !kept(client, node.LocalAddr()) {
		return nil, errors.Join(errNotKept, node.Close())
	}
	return node, nil
}

// errNotKept: asking again would take the child's side another second, and end in the same way.
var errNotKept = errors.New("the client's address could not be kept, most likely because a network policy refuses it")

// kept tells whether the node's side of a connection has the client's address. It has none from loopback, which means
// another one in the node's network namespace.
func kept(client, inside net.Addr) bool {
	from, ok := client.(*net.TCPAddr)
	if ok && from.IP.IsLoopback() {
		return true
	}
	now, same := inside.(*net.TCPAddr)
	return ok && same && now.IP.Equal(from.IP)
}

// wait returns false when the port was removed first.
func (f *forward) wait(d time.Duration) bool { return pauseFor(f.ctx, d) }

// fail logs a fault, and reports it if it is a lack of descriptors.
func (f *forward) fail(err error) {
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		f.monitor.short(f, ReasonFiles, fmt.Sprintf("%v: new connections wait", err))
	}
	f.say(err)
}

// say logs a fault of the port, and not each one again: every client of a port that nobody answers makes one.
func (f *forward) say(err error) {
	if f.ctx.Err() == nil && !f.told.Swap(true) {
		_, _ = fmt.Fprintf(f.log, "port %d/%s: %v\n", f.spec.ParentPort, f.spec.Proto, err) // a log
	}
}
