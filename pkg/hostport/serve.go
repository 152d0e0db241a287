package hostport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/pkg/status/localsock"
)

const (
	// requestSize is that of a port, in network byte order.
	requestSize = 2
	// answerLimit bounds one question: loopback answers or refuses at once, unless its backlog is full.
	answerLimit = 5 * time.Second
)

// Answers to a request. With answerOpen comes the descriptor.
const (
	answerOpen = iota
	answerForbidden
	answerRefused
)

// Listen makes the socket at path for Serve: mode 0600, for the account alone. Runs in: parent.
func Listen(path string) (*net.UnixListener, error) { return localsock.Listen(path) }

// Serve hands out connections to ports of the host's loopback until ctx ends, then closes l. Only the process's own uid is
// served. Runs in: parent.
func Serve(ctx context.Context, l net.Listener, ports []int, log logrus.FieldLogger) error {
	own := localsock.Own(l)
	stop := context.AfterFunc(ctx, func() { _ = l.Close() }) // Accept tells of it
	defer stop()
	var asked sync.WaitGroup
	defer asked.Wait()
	for {
		c, err := own.Accept()
		if ctx.Err() != nil {
			if err == nil {
				_ = c.Close() // it came with the stop
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("serve ports of the host: %w", err)
		}
		asked.Go(func() {
			defer c.Close()
			if err := answer(ctx, c, ports); err != nil {
				log.WithError(err).Debug("connect to a port of the host")
			}
		})
	}
}

// answer serves one request.
func answer(ctx context.Context, c net.Conn, ports []int) error {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("%T is no unix socket", c)
	}
	if err := u.SetDeadline(time.Now().Add(answerLimit)); err != nil {
		return err
	}
	var request [requestSize]byte
	if _, err := io.ReadFull(u, request[:]); err != nil {
		return err
	}
	port := int(binary.BigEndian.Uint16(request[:]))
	if !slices.Contains(ports, port) {
		_, err := u.Write([]byte{answerForbidden})
		return errors.Join(fmt.Errorf("port %d is not among network.hostPorts", port), err)
	}
	host, err := dialLoopback(ctx, port)
	if err != nil {
		_, werr := u.Write([]byte{answerRefused})
		return errors.Join(err, werr)
	}
	defer host.Close() // the receiver has its own descriptor
	return send(u, host)
}

// dialLoopback connects to what listens on the host's loopback, whichever family it chose.
func dialLoopback(ctx context.Context, port int) (net.Conn, error) {
	d := net.Dialer{Timeout: answerLimit}
	c, err := d.DialContext(ctx, "tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if errors.Is(err, syscall.ECONNREFUSED) {
		if six, err6 := d.DialContext(ctx, "tcp6", net.JoinHostPort("::1", strconv.Itoa(port))); err6 == nil {
			return six, nil
		}
	}
	return c, err
}

// send passes the descriptor of c (unix(7), SCM_RIGHTS).
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
