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

	"github.com/rootlessnode/rootlessnode/internal/relay"
	"github.com/rootlessnode/rootlessnode/pkg/status/localsock"
)

const (
	// requestSize is that of a port, in network byte order.
	requestSize = 2
	// answerLimit bounds one question: loopback answers or refuses at once, unless its backlog is full.
	answerLimit = 5 * time.Second
	// waitLimit bounds the wait for an answer, which may take a while if many are asked for.
	waitLimit = 30 * time.Second
	// At most one of askedPart descriptors of the process is used for questions, and not more than mostAsked. Further questions
	// wait in the kernel's queue. A port of the host that does not accept occupies a quarter of them at most.
	askedPart, mostAsked, portPart = 32, 512, 4
)

// Answers to a request. With answerOpen comes the descriptor.
const (
	answerOpen = iota
	answerForbidden
	answerRefused
	answerBusy // ask again later
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
	limit, err := relay.Limit()
	if err != nil {
		return err
	}
	most := min(mostAsked, max(portPart, limit/askedPart/perConnection))
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
				_ = c.Close() // it came with the stop
			}
			return nil
		}
		if exhausted(err) { // those who ask wait
			log.WithError(err).Warn("serve ports of the host")
			<-free
			pause(ctx, time.Second)
			continue
		}
		if err != nil {
			return fmt.Errorf("serve ports of the host: %w", err)
		}
		asked.Go(func() {
			defer func() { <-free }()
			defer c.Close()
			if err := answer(ctx, c, busy); err != nil {
				log.WithError(err).Debug("connect to a port of the host")
			}
		})
	}
}

// answer serves one request. The keys of busy are the ports that may be asked for; each has as many places as questions may be
// answered at the same time.
func answer(ctx context.Context, c net.Conn, busy map[int]chan struct{}) error {
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
	places, ok := busy[port]
	if !ok {
		_, err := u.Write([]byte{answerForbidden})
		return errors.Join(fmt.Errorf("port %d is not among network.hostPorts", port), err)
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
	defer host.Close() // the receiver has its own descriptor
	return send(u, host)
}

// dialLoopback connects to what listens on the host's loopback, whichever family it chose.
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
