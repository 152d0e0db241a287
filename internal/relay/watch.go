package relay

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// sweepEvery is the interval of checks for clients that have ended their direction of the stream, or whose data the server
// does not accept.
const sweepEvery = 1 * time.Second

// drainLimit is how long the server may accept no data of a client that has gone before the remaining data is dropped.
const drainLimit = 15 * time.Second

// KeepAlive detects clients that vanished: after 15 s without data the kernel sends a probe every 10 s and gives up after
// four unanswered probes. The kernel of a closed client answers a probe with a reset as soon as it has dropped the
// connection; Linux does so after net.ipv4.tcp_fin_timeout, 60 s by default.
var KeepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 10 * time.Second, Count: 4}

// Watch reports clients that have gone. A read from the client would report it too, but there is no read from a client while
// the server does not accept earlier data, or while there is no connection to the server yet.
//
// A client has gone when its connection has failed (a reset, keep-alive), or when its program has closed the socket. On the
// wire, the latter looks like a shutdown of one direction. For clients on the same host the kernel's socket table
// distinguishes the two (sock_diag(7)); for others a keep-alive probe does, see KeepAlive.
type Watch struct {
	epoll *os.File
	table *socketTable // nil if the kernel does not provide it
	// drainLimit is the constant of the same name, except in tests.
	drainLimit time.Duration

	mu      sync.Mutex
	last    int64
	clients map[int64]*Client
	done    sync.WaitGroup
}

// Client is one connection that a Watch observes.
type Client struct {
	watch *Watch
	conn  syscall.RawConn
	id    int64
	pair  pair

	mu   sync.Mutex
	left bool
	gone func()
	// ended is set when the client has sent its end of file; stalled while the server does not accept the client's data.
	ended, stalled atomic.Bool
}

// NewWatch returns a Watch. It uses two descriptors until Close.
func NewWatch() (*Watch, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("watch connections: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil { // so that package os waits for it in its own epoll instance
		return nil, errors.Join(fmt.Errorf("watch connections: %w", err), unix.Close(fd))
	}
	w := &Watch{epoll: os.NewFile(uintptr(fd), "epoll"), table: openSocketTable(), drainLimit: drainLimit, clients: map[int64]*Client{}}
	w.done.Go(w.run)
	return w, nil
}

// Close ends the observation. Clients that go afterwards are not reported.
func (w *Watch) Close() {
	_ = w.epoll.Close() // nothing was written
	w.done.Wait()
	w.table.close()
}

// Add observes c, a TCP or unix socket, until Stop is called.
func (w *Watch) Add(c net.Conn) (*Client, error) {
	s, ok := c.(syscall.Conn)
	if !ok {
		return nil, fmt.Errorf("watch connection: %T has no descriptor", c)
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("watch connection: %w", err)
	}
	client := &Client{watch: w, conn: raw, pair: pairOf(c)}
	w.mu.Lock()
	w.last++
	client.id = w.last
	w.clients[client.id] = client
	first := len(w.clients) == 1
	w.mu.Unlock()
	if first {
		_ = w.epoll.SetReadDeadline(time.Now().Add(sweepEvery)) // fails only on a closed Watch
	}
	// EPOLLERR and EPOLLHUP are always reported. With edge-triggered events, data does not wake the goroutine.
	event := &unix.EpollEvent{Events: unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(client.id), Pad: int32(client.id >> 32)}
	if err := client.control(unix.EPOLL_CTL_ADD, event); err != nil {
		client.forget()
		return nil, fmt.Errorf("watch connection: %w", err)
	}
	return client, nil
}

func (c *Client) control(op int, event *unix.EpollEvent) error {
	epoll, err := c.watch.epoll.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = epoll.Control(func(epfd uintptr) {
		outer := c.conn.Control(func(fd uintptr) { failed = unix.EpollCtl(int(epfd), op, int(fd), event) })
		failed = errors.Join(failed, outer)
	})
	return errors.Join(err, failed)
}

func (c *Client) forget() {
	c.watch.mu.Lock()
	delete(c.watch.clients, c.id)
	c.watch.mu.Unlock()
}

// Stop ends the observation of c. It must be called before the connection is closed. The function of OnGone may still be
// running.
func (c *Client) Stop() {
	c.forget()
	_ = c.control(unix.EPOLL_CTL_DEL, nil) // fails only if the Watch or the connection is closed, which has the same effect
}

// OnGone replaces the function that is called when the client has gone: once, possibly immediately, from any goroutine. It
// must not block.
func (c *Client) OnGone(f func()) {
	c.mu.Lock()
	c.gone = f
	left := c.left
	c.mu.Unlock()
	if left {
		f()
	}
}

func (c *Client) leave() {
	c.mu.Lock()
	first, f := !c.left, c.gone
	c.left = true
	c.mu.Unlock()
	if first && f != nil {
		f()
	}
}

func (w *Watch) run() {
	raw, err := w.epoll.SyscallConn()
	if err != nil {
		return // closed
	}
	events := make([]unix.EpollEvent, 128)
	for {
		n := 0
		err := raw.Read(func(fd uintptr) bool {
			n, err = unix.EpollWait(int(fd), events, 0)
			return err != nil && !errors.Is(err, unix.EINTR) || n > 0
		})
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			w.sweep()
		case err != nil:
			return // closed
		}
		for _, e := range events[:max(n, 0)] {
			w.mu.Lock()
			c := w.clients[int64(uint32(e.Fd))|int64(e.Pad)<<32]
			w.mu.Unlock()
			switch {
			case c == nil:
			case e.Events&(unix.EPOLLERR|unix.EPOLLHUP) != 0:
				c.leave()
			case e.Events&unix.EPOLLRDHUP != 0:
				c.ended.Store(true)
			}
		}
	}
}

// sweep checks the clients that may have gone without an event.
func (w *Watch) sweep() {
	w.mu.Lock()
	var suspects []*Client
	for _, c := range w.clients {
		if c.ended.Load() || c.stalled.Load() {
			suspects = append(suspects, c)
		}
	}
	next := time.Time{}
	if len(w.clients) > 0 {
		next = time.Now().Add(sweepEvery)
	}
	_ = w.epoll.SetReadDeadline(next) // fails only on a closed Watch
	w.mu.Unlock()
	for _, c := range suspects {
		if c.pair.known && w.table.orphaned(c.pair) {
			c.leave()
		}
	}
}

// pair contains the two addresses of a TCP connection from the client's view.
type pair struct {
	client, server netip.AddrPort
	known          bool
}

func pairOf(c net.Conn) pair {
	client, ok := c.RemoteAddr().(*net.TCPAddr)
	server, also := c.LocalAddr().(*net.TCPAddr)
	if !ok || !also {
		return pair{}
	}
	p := pair{client: client.AddrPort(), server: server.AddrPort()}
	p.client = netip.AddrPortFrom(p.client.Addr().Unmap().WithZone(""), p.client.Port())
	p.server = netip.AddrPortFrom(p.server.Addr().Unmap().WithZone(""), p.server.Port())
	p.known = p.client.Addr().Is4() == p.server.Addr().Is4()
	return p
}
