package hostport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/localsock"
	"github.com/rootlessnode/rootlessnode/internal/relay"
)

const (
	// requestSize is the size of a port number in network byte order.
	requestSize = 2
	// answerLimit bounds the handling of one request: a connection to loopback succeeds or fails immediately unless the
	// backlog is full.
	answerLimit = 5 * time.Second
	// waitLimit bounds the wait for an answer, which may take longer with many requests.
	waitLimit = 30 * time.Second
	// At most one in requestPart descriptors of the process, and at most maxRequests, are used for requests. Further
	// requests wait in the kernel's queue. One port of the host that accepts no connections occupies at most a quarter of
	// them.
	requestPart, maxRequests, portPart = 32, 512, 4
)

// Answers to a request. The descriptor is sent with answerOpen.
const (
	answerOpen = iota
	answerForbidden
	answerRefused
	answerBusy // retry later
)

// Listen creates the socket for Serve at path, with mode 0600. Runs in: parent.
func Listen(path string) (*net.UnixListener, error) { return localsock.Listen(path) }

// Serve answers requests for connections to ports of the host's loopback until ctx ends, then closes l. Only clients with
// the process's own UID are served. Runs in: parent.
func Serve(ctx context.Context, l net.Listener, ports []int, log logrus.FieldLogger) error {
	own := localsock.Own(l)
	stop := context.AfterFunc(ctx, func() { _ = l.Close() }) // Accept then fails
	defer stop()
	var requests sync.WaitGroup
	defer requests.Wait()
	limit, err := relay.Limit()
	if err != nil {
		return err
	}
	most := min(maxRequests, max(portPart, limit/requestPart/perConnection))
	free := make(chan struct{}, most)
	busy := map[int]chan struct{}{}
	for _, p := range ports {
		busy[p] = make(chan struct{}, most/portPart)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case free <- struct{}{}:
		}
		c, err := own.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = c.Close() // accepted while stopping
			}
			return nil
		}
		if exhausted(err) { // requests wait in the queue
			log.WithError(err).Warn("serve ports of the host")
			<-free
			pause(ctx, time.Second)
			continue
		}
		if err != nil {
			return fmt.Errorf("serve ports of the host: %w", err)
		}
		requests.Go(func() {
			defer func() { <-free }()
			defer c.Close()
			if err := answer(ctx, c, busy); err != nil {
				log.WithError(err).Debug("connect to a port of the host failed")
			}
		})
	}
}

// answer serves one request. The keys of busy are the permitted ports; each channel limits the simultaneous requests for its
// port.
func answer(ctx context.Context, c net.Conn, busy map[int]chan struct{}) error {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("%T is not a unix socket", c)
	}
	if err := u.SetDeadline(time.Now().Add(answerLimit)); err != nil {
		return err
	}
	var request [requestSize]byte
	if _, err := io.ReadFull(u, request[:]); err != nil {
		return err
	}
	port := int(binary.BigEndian.Uint16(request[:]))
	places, ok := busy[port]
	if !ok {
		_, err := u.Write([]byte{answerForbidden})
		return errors.Join(fmt.Errorf("port %d is not in network.hostPorts", port), err)
	}
	select {
	case places <- struct{}{}:
		defer func() { <-places }()
	default:
		_, err := u.Write([]byte{answerBusy})
		return err
	}
	host, err := dialLoopback(ctx, port)
	if err != nil {
		_, werr := u.Write([]byte{answerRefused})
		return errors.Join(err, werr)
	}
	defer host.Close() // the receiver has a duplicate of the descriptor
	return send(u, host)
}

// dialLoopback connects to a port on the host's loopback, first with IPv4, then with IPv6.
func dialLoopback(ctx context.Context, port int) (net.Conn, error) {
	d := net.Dialer{Timeout: answerLimit}
	began := time.Now()
	c, err := d.DialContext(ctx, "tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	for exhausted(err) && time.Since(began) < answerLimit && ctx.Err() == nil {
		pause(ctx, acceptPause)
		c, err = d.DialContext(ctx, "tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		if six, err6 := d.DialContext(ctx, "tcp6", net.JoinHostPort("::1", strconv.Itoa(port))); err6 == nil {
			return six, nil
		}
	}
	return c, err
}

// send passes the descriptor of c to u (unix(7), SCM_RIGHTS).
func send(u *net.UnixConn, c net.Conn) error {
	raw, err := c.(syscall.Conn).SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = raw.Control(func(fd uintptr) {
		_, _, sent = u.WriteMsgUnix([]byte{answerOpen}, unix.UnixRights(int(fd)), nil)
	})
	return errors.Join(err, sent)
}
