package portdriver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rootless-containers/rootlesskit/v3/pkg/port"

	"github.com/rootlessnode/rootlessnode/internal/relay"
)

const (
	// udpIdle is the time without datagrams from either side after which a client's session ends. It is that of the builtin
	// driver.
	udpIdle = 90 * time.Second
	// udpSessions limits the sessions of one port, each of which uses a descriptor. A new client beyond the limit ends the
	// session that has been idle for longest.
	udpSessions = 1024
	// udpWaiting is the number of a client's datagrams that wait for its connection to the node; further ones are dropped.
	udpWaiting = 32
	// udpRefusedPause is the time before a session connects again after its destination has refused a datagram.
	udpRefusedPause = 50 * time.Millisecond
	// maxDatagram is the largest payload of UDP over IPv4.
	maxDatagram = 65507
)

// udpForward is one open UDP port. Each client has a session with its own connection to the node. RootlessKit's builtin
// driver does the same, but does not check the client's address.
type udpForward struct {
	conn   *net.UDPConn
	spec   port.Spec
	socket string // of the child's side
	guard  *guard
	share  *relay.Share // of descriptors
	log    io.Writer
	limit  int
	idle   time.Duration
	ctx    context.Context // of the port; when it ends, the sessions end
	cancel context.CancelFunc
	group  sync.WaitGroup // the reader and all sessions

	mu          sync.Mutex
	sessions    map[netip.AddrPort]*udpSession
	faultLogged atomic.Bool
}

// udpSession is the session of one client of a port.
type udpSession struct {
	client netip.AddrPort
	last   atomic.Int64 // time of the last datagram, in nanoseconds
	ctx    context.Context
	end    context.CancelFunc

	mu      sync.Mutex
	node    *net.UDPConn // nil until it is connected
	waiting [][]byte
}

func listenUDP(network, address string, f *udpForward) (*udpForward, error) {
	addr, err := net.ResolveUDPAddr(network, address)
	if err != nil {
		return nil, err
	}
	if f.conn, err = net.ListenUDP(network, addr); err != nil {
		return nil, err
	}
	f.sessions = map[netip.AddrPort]*udpSession{}
	f.ctx, f.cancel = context.WithCancel(context.Background())
	f.group.Go(f.read)
	return f, nil
}

// close closes the port and returns when all its sessions have ended.
func (f *udpForward) close(context.Context) error {
	f.cancel()
	err := f.conn.Close()
	f.group.Wait()
	return err
}

// read forwards datagrams of clients until the port is closed.
func (f *udpForward) read() {
	buf := make([]byte, maxDatagram)
	for {
		n, client, err := f.conn.ReadFromUDPAddrPort(buf)
		switch {
		case f.ctx.Err() != nil:
			return
		case err != nil:
			f.logFault(err)
			if !pauseFor(f.ctx, acceptPause) {
				return
			}
			continue
		}
		if s := f.session(client); s != nil {
			s.toNode(buf[:n])
		}
	}
}

// session returns the session of a client and creates it if needed. It returns nil if the client is not allowed.
func (f *udpForward) session(client netip.AddrPort) *udpSession {
	now := time.Now().UnixNano()
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.sessions[client]; s != nil && s.ctx.Err() == nil {
		s.last.Store(now)
		return s
	}
	s := &udpSession{client: client}
	s.ctx, s.end = context.WithCancel(f.ctx)
	leave, admitted := f.guard.enter(client.Addr(), s.end)
	if !admitted {
		s.end()
		return nil
	}
	if len(f.sessions) >= f.limit || !f.share.Take(perConnection, 1) {
		f.makeRoom()
		if len(f.sessions) >= f.limit || !f.share.Take(perConnection, 1) { // the ended session may not be released yet
			leave()
			s.end()
			return nil
		}
	}
	s.last.Store(now)
	f.sessions[client] = s
	f.group.Go(func() {
		defer f.share.Release(perConnection)
		defer leave()
		f.run(s)
	})
	return s
}

// makeRoom ends the session that has been idle for longest, if there is any. f.mu must be held.
func (f *udpForward) makeRoom() {
	var oldest *udpSession
	for _, s := range f.sessions {
		if oldest == nil || s.last.Load() < oldest.last.Load() {
			oldest = s
		}
	}
	if oldest != nil {
		delete(f.sessions, oldest.client)
		oldest.end()
	}
}

// run connects a session and forwards the node's answers until the session ends. If the destination refuses a datagram, the
// session connects again, from another source port: for the old one, kube-proxy keeps the pod, which may have ended.
func (f *udpForward) run(s *udpSession) {
	defer func() {
		s.end()
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.sessions[s.client] == s {
			delete(f.sessions, s.client)
		}
	}()
	for again := true; again; {
		node, err := f.connect(s.ctx)
		if err != nil {
			if s.ctx.Err() == nil {
				f.logFault(fmt.Errorf("connect to the node: %w", err))
			}
			return
		}
		f.faultLogged.Store(false)
		stop := context.AfterFunc(s.ctx, func() { _ = node.Close() }) // unblocks answer
		s.connected(node)
		again = f.answer(s, node)
		s.disconnected()
		stop()
		_ = node.Close()
		again = again && pauseFor(s.ctx, udpRefusedPause)
	}
}

// answer forwards datagrams of the node to the client until the session ends or is idle. It returns true if the destination
// refused a datagram.
func (f *udpForward) answer(s *udpSession, node *net.UDPConn) (refused bool) {
	buf := make([]byte, maxDatagram)
	for {
		idleAt := time.Unix(0, s.last.Load()).Add(f.idle)
		if !time.Now().Before(idleAt) || node.SetReadDeadline(idleAt) != nil {
			return false
		}
		n, err := node.Read(buf)
		switch {
		case s.ctx.Err() != nil, errors.Is(err, net.ErrClosed):
			return false
		case errors.Is(err, syscall.ECONNREFUSED): // an earlier datagram: no program listens there
			return true
		case err != nil:
			continue // a deadline ends above, unless the client has sent a datagram since
		}
		s.last.Store(time.Now().UnixNano())
		if _, err := f.conn.WriteToUDPAddrPort(buf[:n], s.client); err != nil && errors.Is(err, net.ErrClosed) {
			return false
		}
	}
}

// disconnected makes datagrams wait for the next connection.
func (s *udpSession) disconnected() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.node = nil
}

// connected sends the waiting datagrams.
func (s *udpSession) connected(node *net.UDPConn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.waiting {
		_, _ = node.Write(d) // datagrams may be lost
	}
	s.node, s.waiting = node, nil
}

// toNode sends one datagram, or stores a copy of it until the session is connected.
func (s *udpSession) toNode(d []byte) {
	s.mu.Lock()
	node := s.node
	if node == nil && len(s.waiting) < udpWaiting {
		s.waiting = append(s.waiting, append([]byte(nil), d...))
	}
	s.mu.Unlock()
	if node != nil {
		_, _ = node.Write(d) // datagrams may be lost
	}
}

// connect requests a connection from the child, with retries.
func (f *udpForward) connect(ctx context.Context) (*net.UDPConn, error) {
	for i := 1; ; i++ {
		c, err := f.requestConnection(ctx)
		if err == nil || i == attempts {
			return c, err
		}
		if !pauseFor(ctx, time.Duration(i)*pause) {
			return nil, ctx.Err()
		}
	}
}

func (f *udpForward) requestConnection(ctx context.Context) (*net.UDPConn, error) {
	c, err := requestConnection(ctx, f.socket, f.spec, nil)
	if err != nil {
		return nil, err
	}
	node, ok := c.(*net.UDPConn)
	if !ok {
		return nil, errors.Join(fmt.Errorf("the child sent a %T instead of a UDP connection", c), c.Close())
	}
	return node, nil
}

// logFault logs a fault of the port once until a connection succeeds.
func (f *udpForward) logFault(err error) {
	if f.ctx.Err() == nil && !f.faultLogged.Swap(true) {
		_, _ = fmt.Fprintf(f.log, "port %d/%s: %v\n", f.spec.ParentPort, f.spec.Proto, err) // a log
	}
}
