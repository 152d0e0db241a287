package portdriver

import (
	"context"
	"encoding/json"
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
	// attempts and pause are those of the builtin driver: the number of requests to the child, and the time by which the
	// delay before the next one grows.
	attempts = 10
	pause    = 5 * time.Millisecond
	// acceptPause is the delay after a failed accept, most likely because there are no descriptors left. Clients wait
	// meanwhile.
	acceptPause = 100 * time.Millisecond
	// connectLimit bounds one attempt. Without it, the kernel would try for two minutes if a server's queue is full.
	connectLimit = 30 * time.Second
	// inheritedAttempts is for inherited sockets, whose clients may have started the node by connecting: some minutes.
	inheritedAttempts, inheritedPause = 3000, 100 * time.Millisecond
)

// forward is one open port.
type forward struct {
	ln          net.Listener
	guard       *guard // checks the clients
	forget      func() // removes the guard
	spec        port.Spec
	inherited   bool
	strict      bool   // SourcesKeptOrRefused
	socket      string // of the child's side
	log         io.Writer
	ctx         context.Context // of the port; when it ends, the connections end
	cancel      context.CancelFunc
	group       sync.WaitGroup // the listener and all connections
	faultLogged atomic.Bool    // a fault was logged since the last successful connection

	share   *relay.Share // of descriptors
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
	own := slices.IndexFunc(d.inherited, func(h *net.TCPListener) bool { return h.Addr().String() == address })
	if own >= 0 {
		ln, err = duplicate(d.inherited[own])
	} else {
		lc := net.ListenConfig{KeepAliveConfig: relay.KeepAlive}
		ln, err = lc.Listen(context.Background(), network, address)
	}
	if err != nil {
		share.Release(perPort)
		return nil, err
	}
	guard, forget := d.sources.open(spec)
	f := &forward{
		ln: ln, guard: guard, forget: forget, spec: spec, inherited: own >= 0, strict: d.strict, socket: d.socket, log: d.log,
		share: share, pipes: d.limits.pipes, watch: d.watch, monitor: d.monitor,
	}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	f.group.Go(f.accept)
	return f, nil
}

// duplicate returns a duplicate of a listening socket. The socket keeps listening when the duplicate is closed.
func duplicate(l *net.TCPListener) (net.Listener, error) {
	file, err := l.File()
	if err != nil {
		return nil, err
	}
	defer file.Close() // FileListener duplicates the descriptor
	return net.FileListener(file)
}

// close closes the port. It is quick, because everything that it waits for ends with f.ctx.
func (f *forward) close(context.Context) error {
	f.cancel()
	err := f.ln.Close()
	f.group.Wait()
	f.share.Release(perPort)
	f.monitor.forget(f)
	if f.forget != nil {
		f.forget()
	}
	return err
}

// accept accepts connections while the port has descriptors for them. Other clients wait in the kernel's queue.
func (f *forward) accept() {
	for {
		c, err := f.ln.Accept()
		if err == nil {
			if !f.admit() {
				_ = c.Close() // the port was removed
				return
			}
			f.group.Go(func() { defer f.share.Release(perConnection); f.serve(c.(*net.TCPConn)) })
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

// admit waits until the port may have another connection. It returns false if the port is removed first.
func (f *forward) admit() bool {
	for !f.share.Take(perConnection, 1) {
		f.monitor.short(f, ReasonConnections, fmt.Sprintf("connection limit reached: %d connections are open; new connections wait",
			(f.share.Used()-perPort)/perConnection))
		if !f.wait(fullPause) {
			return false
		}
	}
	return true
}

// serve copies between c and the node until both directions have ended, the client has gone, or the port is removed.
func (f *forward) serve(c *net.TCPConn) {
	defer c.Close()
	ctx, cancel := context.WithCancel(f.ctx)
	defer cancel()
	leave, admitted := f.guard.enter(c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr(), func() { cancel(); _ = c.Close() })
	if !admitted {
		_ = c.SetLinger(0) // send a reset, as if no program listened
		return
	}
	defer leave()
	if f.inherited {
		_ = c.SetKeepAliveConfig(relay.KeepAlive) // the inherited listener may have other settings
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
			f.fail(fmt.Errorf("connect to the node: %w", err))
		}
		_ = c.SetLinger(0) // send a reset: no program listens
		return
	}
	f.faultLogged.Store(false)
	_ = node.SetKeepAliveConfig(relay.KeepAlive) // replaces RootlessKit's settings
	client.Join(ctx, c, node, f.pipes)
}

// connect requests a connection from the child, with retries.
func (f *forward) connect(ctx context.Context, client net.Addr) (*net.TCPConn, error) {
	most, longest := attempts, attempts*pause
	if f.inherited {
		most, longest = inheritedAttempts, inheritedPause
	}
	began := time.Now()
	for i := 1; ; i++ {
		c, err := f.requestConnection(ctx, client)
		switch {
		case err == nil || errors.Is(err, errAddressNotKept):
			return c, err
		case exhausted(err) && time.Since(began) < connectLimit: // the client waits, as before its connection was accepted
			f.fail(err)
			if i--; !pauseFor(ctx, acceptPause) {
				return nil, ctx.Err()
			}
			continue
		case i >= most, !f.inherited && time.Since(began) >= connectLimit:
			return nil, err
		}
		if !pauseFor(ctx, min(time.Duration(i-1)*pause, longest)) {
			return nil, ctx.Err()
		}
	}
}

// exhausted reports whether err means that there are no descriptors left, or that the child's queue is full.
func exhausted(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) || errors.Is(err, syscall.EAGAIN)
}

// requestConnection requests a connection to the port's destination from the child, which listens at socket. client is nil if the
// connection need not have the client's address.
func requestConnection(ctx context.Context, socket string, spec port.Spec, client net.Addr) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	var d net.Dialer
	child, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	defer child.Close()
	// Do not close the connection instead: a descriptor that has just arrived would leak.
	stop := context.AfterFunc(ctx, func() { _ = child.SetDeadline(time.Unix(0, 1)) })
	defer stop()
	fd, err := msg.ConnectToChild(child.(*net.UnixConn), spec, client)
	if err != nil {
		return nil, childError(child, err)
	}
	file := os.NewFile(uintptr(fd), "node")
	defer file.Close() // FileConn duplicates the descriptor
	return net.FileConn(file)
}

// childError returns the error in the child's reply, or err if there is none. ConnectToChild (RootlessKit 3.3.0) does not read a reply
// without a descriptor, except for its first byte, and only returns that the descriptor is missing.
func childError(child io.Reader, err error) error {
	const restOfHeader = 3
	rest, _ := io.ReadAll(io.LimitReader(child, 1<<16)) // an incomplete reply is not decoded
	var reply msg.Reply
	if len(rest) <= restOfHeader || json.Unmarshal(rest[restOfHeader:], &reply) != nil || reply.Error == "" {
		return err
	}
	return errors.New(reply.Error)
}

func (f *forward) requestConnection(ctx context.Context, client net.Addr) (*net.TCPConn, error) {
	c, err := requestConnection(ctx, f.socket, f.spec, client)
	if err != nil {
		return nil, err
	}
	node, ok := c.(*net.TCPConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("the child sent a %T instead of a TCP connection", c), c.Close())
	}
	if f.strict && !keepsAddress(client, node.LocalAddr()) {
		return nil, errors.Join(errAddressNotKept, node.Close())
	}
	return node, nil
}

// errAddressNotKept is not retried, because a retry would take the child another second with the same result.
var errAddressNotKept = errors.New("the client's address could not be kept, most likely because a network policy refuses it")

// keepsAddress reports whether the node's side of a connection has the client's address. For a client on loopback it returns
// true, because a loopback address cannot be kept: it means another host inside the node's network namespace.
func keepsAddress(client, inside net.Addr) bool {
	from, ok := client.(*net.TCPAddr)
	if ok && from.IP.IsLoopback() {
		return true
	}
	now, same := inside.(*net.TCPAddr)
	return ok && same && now.IP.Equal(from.IP)
}

// wait waits for d. It returns false if the port is removed first.
func (f *forward) wait(d time.Duration) bool { return pauseFor(f.ctx, d) }

// fail logs a fault, and reports it to the monitor if there are no descriptors left.
func (f *forward) fail(err error) {
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		f.monitor.short(f, ReasonFiles, fmt.Sprintf("%v; new connections wait", err))
	}
	f.logFault(err)
}

// logFault logs a fault of the port once until a connection succeeds, because every client of a port without a program would
// cause one.
func (f *forward) logFault(err error) {
	if f.ctx.Err() == nil && !f.faultLogged.Swap(true) {
		_, _ = fmt.Fprintf(f.log, "port %d/%s: %v\n", f.spec.ParentPort, f.spec.Proto, err) // a log
	}
}
