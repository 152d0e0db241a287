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

// RelayOptions for Relay. All but Descriptors are required.
type RelayOptions struct {
	// Address is where to listen; see EnsureAddress.
	Address netip.Addr
	Ports   []int
	// Socket is that of Serve.
	Socket string
	Log    logrus.FieldLogger
	// Descriptors is how many the connections of all ports together may use; 0 for half of what setrlimit(2) allows this
	// process, so that the other half is left for its other work.
	Descriptors int
}

const (
	// perConnection is what a connection costs: the client's socket, and the host's or, before there is one, that to Serve.
	perConnection = 2
	// sourceFactor makes the limit of one address, that is, of one pod, a third of Descriptors. A port may use half of them.
	sourceFactor = 2
	// fullPause is between two attempts to take descriptors; acceptPause is for a listener that cannot accept, most likely
	// because the process has none left.
	fullPause, acceptPause = 20 * time.Millisecond, 100 * time.Millisecond
	// logEvery bounds how often it is logged that something is at its limit.
	logEvery = 10 * time.Second
	// mostPipes is for bulk transfers at the same time.
	mostPipes = 16
)

// Relay listens on the address and passes connections on, until ctx ends; those that are open then are closed. A
// connection that the host refuses is reset, and so is one of an address that has too many. Those to a port that has too many
// wait in the kernel's queue. It calls ready once all ports are open. Runs in: child.
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
	var listeners []net.Listener
	for _, p := range o.Ports {
		lc := net.ListenConfig{KeepAliveConfig: relay.KeepAlive}
		l, err := lc.Listen(ctx, "tcp4", netip.AddrPortFrom(o.Address, uint16(p)).String())
		if err != nil {
			for _, l := range listeners {
				_ = l.Close() // the fault is told
			}
			return fmt.Errorf("listen for connections to port %d of the host: %w", p, err)
		}
		listeners = append(listeners, l)
	}
	ready()
	r := &relays{
		o: o, watch: watch, pipes: relay.NewPipes(mostPipes), ports: relay.NewBudget(o.Descriptors),
		budget: relay.NewBudget(o.Descriptors), sources: map[netip.Addr]*relay.Share{},
	}
	for i, l := range listeners {
		stop := context.AfterFunc(ctx, func() { _ = l.Close() }) // Accept reports it
		defer stop()
		r.group.Go(func() { r.accept(ctx, l.(*net.TCPListener), o.Ports[i]) })
	}
	<-ctx.Done()
	r.group.Wait()
	return nil
}

// relays is one run of Relay.
type relays struct {
	o     RelayOptions
	watch *relay.Watch
	pipes *relay.Pipes
	ports *relay.Budget
	group sync.WaitGroup

	mu      sync.Mutex
	budget  *relay.Budget // of the sources
	sources map[netip.Addr]*relay.Share
	logged  time.Time
}

func (r *relays) accept(ctx context.Context, l *net.TCPListener, port int) {
	share := r.ports.Share()
	for {
		c, err := l.AcceptTCP()
		if ctx.Err() != nil {
			if err == nil {
				_ = c.Close() // it came with the stop
			}
			return
		}
		if err != nil { // the connections that are open are not affected
			r.warn(fmt.Errorf("accept connections to port %d of the host: %w", port, err))
			pause(ctx, acceptPause)
			continue
		}
		source := c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr()
		if !r.take(source) {
			r.warn(fmt.Errorf("reset a connection to port %d of the host: %s has as many as it may have", port, source))
			_, _ = c.SetLinger(0), c.Close() // the client learns it at once
			continue
		}
		for !share.Take(perConnection, 1) && ctx.Err() == nil {
			r.warn(fmt.Errorf("relay to port %d of the host: as many connections as it may have, new ones wait", port))
			pause(ctx, fullPause)
		}
		if ctx.Err() != nil {
			_ = c.Close() // it came with the stop
			return
		}
		r.group.Go(func() {
			defer r.give(source)
			defer share.Give(perConnection)
			if err := r.relay(ctx, c, port); err != nil {
				r.o.Log.WithError(err).Debug("relay to a port of the host")
			}
		})
	}
}

// take takes descriptors of the part of an address, and reports whether there were any.
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
	if share.Give(perConnection); share.Used() == 0 {
		delete(r.sources, source)
	}
}

func (r *relays) warn(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := time.Now(); now.Sub(r.logged) >= logEvery {
		r.logged = now
		r.o.Log.WithError(err).Warn("ports of the host")
	}
}

// pause waits, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// relay copies between c and the host until both directions have ended or the client is gone.
func (r *relays) relay(ctx context.Context, c *net.TCPConn, port int) error {
	defer c.Close()
	client, err := r.watch.Add(c)
	if err != nil {
		return errors.Join(err, c.SetLinger(0))
	}
	host, err := r.connect(ctx, client, port)
	if err != nil {
		client.Stop()
		// The client learns that nothing answers, as if there were no relay.
		return errors.Join(err, c.SetLinger(0))
	}
	client.Join(ctx, c, host, r.pipes)
	return nil
}

// connect returns a connection to the host. Without a descriptor for it, it waits for one until the client gives up.
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

// exhausted reports whether err is a lack of descriptors, or a service whose queue is full.
func exhausted(err error) bool {
	return errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.EAGAIN)
}

// Dial returns a connection to a port of the host's loopback, through Serve. Runs in: child.
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
	stop := context.AfterFunc(ctx, func() { _ = u.SetDeadline(time.Unix(0, 1)) }) // a descriptor that has come is not lost
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
		return nil, fmt.Errorf("port %d of the host is not among network.hostPorts", port)
	case n == 1 && answer[0] == answerRefused:
		return nil, fmt.Errorf("port %d of the host's loopback refuses connections", port)
	case n == 1 && answer[0] == answerBusy:
		return nil, fmt.Errorf("port %d of the host: %w", port, unix.EAGAIN)
	case n != 1:
		return nil, fmt.Errorf("port %d of the host: %w", port, io.ErrUnexpectedEOF)
	}
	return received(rights[:rn])
}

// received makes a connection of the descriptor that came along.
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
	defer f.Close() // FileConn takes a copy
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	t, ok := c.(*net.TCPConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("read the answer: %T", c), c.Close())
	}
	return t, nil
}
