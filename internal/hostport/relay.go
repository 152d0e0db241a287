package hostport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/relay"
)

// RelayOptions are the arguments of Relay. All fields except Descriptors are required.
type RelayOptions struct {
	// Address is the address to listen on; see EnsureAddress.
	Address netip.Addr
	Ports   []int
	// Loopback are those of Ports that Relay also opens at the node's own loopback address, so that a URL with localhost means the same
	// inside as on the host, such as that of a proxy or a registry. A port that is in use there is not opened.
	Loopback []int
	// Socket is the path of the socket of Serve.
	Socket string
	Log    logrus.FieldLogger
	// Descriptors is the number of descriptors for the connections of all ports together; 0 means half of this process's
	// limit (setrlimit(2)), which leaves the other half for its other work.
	Descriptors int
}

const (
	// perConnection is the number of descriptors of a connection: the client's socket, and the host's or, before that, the
	// one to Serve.
	perConnection = 2
	// sourceFactor makes the limit of one address (one pod) a third of Descriptors. A port may use half of them.
	sourceFactor = 2
	// fullPause is the delay between two attempts to take descriptors. acceptPause is the delay after a failed accept, most
	// likely because the process has none left.
	fullPause, acceptPause = 20 * time.Millisecond, 100 * time.Millisecond
	// logEvery is the least interval between warnings about a reached limit.
	logEvery = 10 * time.Second
	// mostPipes is the number of simultaneous bulk transfers through pipes.
	mostPipes = 16
)

// Relay listens on the address and relays connections until ctx ends; open connections are then closed. It resets a
// connection that the host refuses, and a new one of an address that has reached its limit. Connections to a port that has
// reached its limit wait in the kernel's queue. Relay calls ready when all ports are open. Runs in: child.
func Relay(ctx context.Context, o RelayOptions, ready func()) error {
	if o.Descriptors == 0 {
		limit, err := relay.Limit()
		if err != nil {
			return err
		}
		o.Descriptors = limit / 2
	}
	watch, err := relay.NewWatch()
	if err != nil {
		return err
	}
	defer watch.Close()
	listeners, err := listen(ctx, o)
	if err != nil {
		return err
	}
	ready()
	r := &relays{
		o: o, watch: watch, pipes: relay.NewPipes(mostPipes), ports: relay.NewBudget(o.Descriptors),
		budget: relay.NewBudget(o.Descriptors), sources: map[netip.Addr]*relay.Share{},
	}
	for _, l := range listeners {
		stop := context.AfterFunc(ctx, func() { _ = l.Close() }) // Accept then fails
		defer stop()
		r.group.Go(func() { r.accept(ctx, l, l.Addr().(*net.TCPAddr).Port) })
	}
	<-ctx.Done()
	r.group.Wait()
	return nil
}

// listen opens the ports.
func listen(ctx context.Context, o RelayOptions) (listeners []*net.TCPListener, err error) {
	lc := net.ListenConfig{KeepAliveConfig: relay.KeepAlive}
	open := func(ip netip.Addr, port int) error {
		l, err := lc.Listen(ctx, "tcp4", netip.AddrPortFrom(ip, uint16(port)).String())
		if err == nil {
			listeners = append(listeners, l.(*net.TCPListener))
		}
		return err
	}
	for _, p := range o.Ports {
		if err := open(o.Address, p); err != nil {
			for _, l := range listeners {
				_ = l.Close() // the listen error is returned
			}
			return nil, fmt.Errorf("listen for connections to port %d of the host: %w", p, err)
		}
	}
	for _, p := range o.Loopback {
		if err := open(netip.AddrFrom4([4]byte{127, 0, 0, 1}), p); err != nil {
			o.Log.WithError(err).Warnf("port %d of the host is not reachable at localhost inside, only at %s", p, o.Address)
		}
	}
	return listeners, nil
}

// relays is the state of one call of Relay.
type relays struct {
	o     RelayOptions
	watch *relay.Watch
	pipes *relay.Pipes
	ports *relay.Budget
	group sync.WaitGroup

	mu      sync.Mutex
	budget  *relay.Budget // for the source addresses
	sources map[netip.Addr]*relay.Share
	logged  time.Time
}

func (r *relays) accept(ctx context.Context, l *net.TCPListener, port int) {
	share := r.ports.Share()
	for {
		c, err := l.AcceptTCP()
		if ctx.Err() != nil {
			if err == nil {
				_ = c.Close() // accepted while stopping
			}
			return
		}
		if err != nil { // open connections are not affected
			r.warn(fmt.Errorf("accept connections to port %d of the host: %w", port, err))
			pause(ctx, acceptPause)
			continue
		}
		source := c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr()
		if !r.take(source) {
			r.warn(fmt.Errorf("reset a connection to port %d of the host: connection limit of %s reached", port, source))
			_, _ = c.SetLinger(0), c.Close() // send a reset
			continue
		}
		for !share.Take(perConnection, 1) && ctx.Err() == nil {
			r.warn(fmt.Errorf("relay to port %d of the host: connection limit reached; new connections wait", port))
			pause(ctx, fullPause)
		}
		if ctx.Err() != nil {
			_ = c.Close() // accepted while stopping
			return
		}
		r.group.Go(func() {
			defer r.give(source)
			defer share.Release(perConnection)
			if err := r.relay(ctx, c, port); err != nil {
				r.o.Log.WithError(err).Debug("relay to a port of the host failed")
			}
		})
	}
}

// take takes descriptors from the share of an address and reports whether enough were free.
func (r *relays) take(source netip.Addr) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	share := r.sources[source]
	if share == nil {
		share = r.budget.Share()
		r.sources[source] = share
	}
	return share.Take(perConnection, sourceFactor)
}

func (r *relays) give(source netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	share := r.sources[source]
	if share.Release(perConnection); share.Used() == 0 {
		delete(r.sources, source)
	}
}

func (r *relays) warn(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); now.Sub(r.logged) >= logEvery {
		r.logged = now
		r.o.Log.WithError(err).Warn("relay connections to ports of the host")
	}
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// relay copies between c and the host until both directions have ended or the client has gone.
func (r *relays) relay(ctx context.Context, c *net.TCPConn, port int) error {
	defer c.Close()
	client, err := r.watch.Add(c)
	if err != nil {
		return errors.Join(err, c.SetLinger(0))
	}
	host, err := r.connect(ctx, client, port)
	if err != nil {
		client.Stop()
		// Send a reset, as if no program listened.
		return errors.Join(err, c.SetLinger(0))
	}
	client.Join(ctx, c, host, r.pipes)
	return nil
}

// connect returns a connection to the host. If there are no descriptors left, it retries until the client gives up.
func (r *relays) connect(ctx context.Context, client *relay.Client, port int) (*net.TCPConn, error) {
	ctx, cancel := context.WithTimeout(ctx, waitLimit)
	defer cancel()
	client.OnGone(cancel)
	for {
		host, err := Dial(ctx, r.o.Socket, port)
		if !exhausted(err) || ctx.Err() != nil {
			return host, err
		}
		r.warn(fmt.Errorf("connect to port %d of the host: %w", port, err))
		pause(ctx, acceptPause)
	}
}

// exhausted reports whether err means that there are no descriptors left, or that the queue of Serve is full.
func exhausted(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.EAGAIN)
}

// Dial connects to a port of the host's loopback through Serve. Runs in: child.
func Dial(ctx context.Context, socket string, port int) (*net.TCPConn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	u := c.(*net.UnixConn)
	if err := u.SetDeadline(time.Now().Add(waitLimit)); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = u.SetDeadline(time.Unix(0, 1)) }) // Close could leak a descriptor that has just arrived
	defer stop()
	if _, err := u.Write(binary.BigEndian.AppendUint16(nil, uint16(port))); err != nil {
		return nil, err
	}
	answer, rights := make([]byte, 1), make([]byte, unix.CmsgSpace(4))
	n, rn, _, _, err := u.ReadMsgUnix(answer, rights)
	if err != nil {
		return nil, err
	}
	switch {
	case n == 1 && answer[0] == answerForbidden:
		return nil, fmt.Errorf("port %d of the host is not in network.hostPorts", port)
	case n == 1 && answer[0] == answerRefused:
		return nil, fmt.Errorf("port %d of the host's loopback: connection refused", port)
	case n == 1 && answer[0] == answerBusy:
		return nil, fmt.Errorf("port %d of the host: %w", port, unix.EAGAIN)
	case n != 1:
		return nil, fmt.Errorf("port %d of the host: %w", port, io.ErrUnexpectedEOF)
	}
	return received(rights[:rn])
}

// received returns the connection of the received descriptor.
func received(rights []byte) (*net.TCPConn, error) {
	msgs, err := unix.ParseSocketControlMessage(rights)
	if err != nil || len(msgs) != 1 {
		return nil, errors.Join(errors.New("read the answer: no descriptor"), err)
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		return nil, errors.Join(errors.New("read the answer: no descriptor"), err)
	}
	f := os.NewFile(uintptr(fds[0]), "host")
	defer f.Close() // FileConn duplicates the descriptor
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	t, ok := c.(*net.TCPConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("read the answer: received a %T instead of a TCP connection", c), c.Close())
	}
	return t, nil
}
