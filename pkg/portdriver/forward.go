package portdriver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
	"github.com/rootless-containers/rootlesskit/v3/pkg/port/builtin/msg"
)

const (
	// attempts and pause are the builtin driver's: how often the child is asked for a connection, and by how much longer
	// each time the wait before the next attempt is.
	attempts = 10
	pause    = 5 * time.Millisecond
	// acceptPause is for a listener that cannot accept, most likely for want of descriptors; who connects waits meanwhile.
	acceptPause = 100 * time.Millisecond
	// heldAttempts is for held sockets, whose clients may have started the node by connecting: some minutes.
	heldAttempts, heldPause = 3000, 100 * time.Millisecond
)

// forward is one open port.
type forward struct {
	ln     net.Listener
	spec   port.Spec
	held   bool
	strict bool   // SourcesKeptOrRefused
	socket string // of the child's side
	log    io.Writer
	ctx    context.Context // of the port; its end ends the connections
	cancel context.CancelFunc
	group  sync.WaitGroup // the listener and all connections
	told   atomic.Bool    // of a fault, since the last connection that was none
}

func (d *driver) listen(spec port.Spec) (*forward, error) {
	network := spec.Proto
	if ip, err := netip.ParseAddr(spec.ParentIP); err == nil && ip.Is4() {
		network = "tcp4" // to net.Listen, tcp on 0.0.0.0 is [::] too
	}
	address := net.JoinHostPort(spec.ParentIP, strconv.Itoa(spec.ParentPort))
	var ln net.Listener
	var err error
	own := slices.IndexFunc(d.held, func(h *net.TCPListener) bool { return h.Addr().String() == address })
	if own >= 0 {
		ln, err = again(d.held[own])
	} else {
		ln, err = net.Listen(network, address)
	}
	if err != nil {
		return nil, err
	}
	f := &forward{ln: ln, spec: spec, held: own >= 0, strict: d.strict, socket: d.socket, log: d.log}
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
	return err
}

func (f *forward) accept() {
	for {
		c, err := f.ln.Accept()
		if err == nil {
			f.group.Go(func() { f.serve(c.(*net.TCPConn)) })
			continue
		}
		if errors.Is(err, net.ErrClosed) {
			return
		}
		f.say(err)
		if !f.wait(acceptPause) {
			return
		}
	}
}

// serve copies between c and the node until both directions have ended, or the port is removed.
func (f *forward) serve(c *net.TCPConn) {
	defer c.Close()
	node, err := f.connect(c.RemoteAddr())
	if err != nil {
		f.say(fmt.Errorf("connect inside: %w", err))
		_ = c.SetLinger(0) // a reset: whoever connected learns that nobody is there
		return
	}
	f.told.Store(false)
	defer node.Close()
	stop := context.AfterFunc(f.ctx, func() { _, _ = c.Close(), node.Close() }) // the copies tell of it
	defer stop()
	var up sync.WaitGroup
	up.Go(func() { pass(node, c) })
	pass(c, node)
	up.Wait()
}

// pass copies one direction and its end. The kernel does the copying (splice(2)).
func pass(to, from *net.TCPConn) {
	_, _ = io.Copy(to, from) // either end may break off
	_ = from.CloseRead()
	_ = to.CloseWrite()
}

// connect asks the child for a connection, several times if need be.
func (f *forward) connect(client net.Addr) (*net.TCPConn, error) {
	most, longest := attempts, attempts*pause
	if f.held {
		most, longest = heldAttempts, heldPause
	}
	for i := 1; ; i++ {
		c, err := f.ask(client)
		if err == nil || i == most || errors.Is(err, errNotKept) {
			return c, err
		}
		if !f.wait(min(time.Duration(i-1)*pause, longest)) {
			return nil, f.ctx.Err()
		}
	}
}

func (f *forward) ask(client net.Addr) (*net.TCPConn, error) {
	var d net.Dialer
	child, err := d.DialContext(f.ctx, "unix", f.socket)
	if err != nil {
		return nil, err
	}
	defer child.Close()
	// Not Close: a descriptor that has come already would be lost between the two.
	stop := context.AfterFunc(f.ctx, func() { _ = child.SetDeadline(time.Unix(0, 1)) })
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
func (f *forward) wait(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-f.ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// say logs a fault of the port, and not each one again: every client of a port that nobody answers makes one.
func (f *forward) say(err error) {
	if f.ctx.Err() == nil && !f.told.Swap(true) {
		_, _ = fmt.Fprintf(f.log, "port %d/%s: %v\n", f.spec.ParentPort, f.spec.Proto, err) // a log
	}
}
