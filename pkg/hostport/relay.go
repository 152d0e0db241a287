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
)

// RelayOptions for Relay. All are required.
type RelayOptions struct {
	// Address is where to listen; see EnsureAddress.
	Address netip.Addr
	Ports   []int
	// Socket is that of Serve.
	Socket string
	Log    logrus.FieldLogger
}

// Relay listens on the address and passes connections on, until ctx ends; those that are open then are closed. A
// connection that the host refuses is reset. It calls ready once all ports are open. Runs in: child.
func Relay(ctx context.Context, o RelayOptions, ready func()) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var listeners []net.Listener
	for _, p := range o.Ports {
		l, err := net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(netip.AddrPortFrom(o.Address, uint16(p))))
		if err != nil {
			for _, l := range listeners {
				_ = l.Close() // the fault is told
			}
			return fmt.Errorf("listen for connections to port %d of the host: %w", p, err)
		}
		listeners = append(listeners, l)
	}
	ready()
	var group sync.WaitGroup
	for i, l := range listeners {
		stop := context.AfterFunc(ctx, func() { _ = l.Close() }) // Accept tells of it
		defer stop()
		group.Go(func() {
			cancel(accept(ctx, l.(*net.TCPListener), o, o.Ports[i], &group))
		})
	}
	<-ctx.Done()
	group.Wait()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

func accept(ctx context.Context, l *net.TCPListener, o RelayOptions, port int, group *sync.WaitGroup) error {
	for {
		c, err := l.AcceptTCP()
		if ctx.Err() != nil {
			if err == nil {
				_ = c.Close() // it came with the stop
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept connections to port %d of the host: %w", port, err)
		}
		group.Go(func() {
			if err := relay(ctx, c, o.Socket, port); err != nil {
				o.Log.WithError(err).Debug("relay to a port of the host")
			}
		})
	}
}

// relay copies between c and the host until both directions have ended.
func relay(ctx context.Context, c *net.TCPConn, socket string, port int) error {
	defer c.Close()
	host, err := Dial(ctx, socket, port)
	if err != nil {
		// Whoever connected learns that nobody is there, as if there were no relay.
		return errors.Join(err, c.SetLinger(0))
	}
	defer host.Close()
	stop := context.AfterFunc(ctx, func() { _, _ = c.Close(), host.Close() }) // the copies tell of it
	defer stop()
	var both sync.WaitGroup
	both.Go(func() { pass(host, c) })
	both.Go(func() { pass(c, host) })
	both.Wait()
	return nil
}

// pass copies one direction and its end. The kernel does the copying (splice(2)).
func pass(to, from *net.TCPConn) {
	_, _ = io.Copy(to, from) // either end may break off
	_ = to.CloseWrite()
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
	if err := u.SetDeadline(time.Now().Add(2 * answerLimit)); err != nil {
		return nil, err
	}
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
