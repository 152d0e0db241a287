package portdriver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/rootless-containers/rootlesskit/v3/pkg/lowlevelmsgutil"
	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
	"github.com/rootless-containers/rootlesskit/v3/pkg/port/builtin"
	"github.com/rootless-containers/rootlesskit/v3/pkg/port/builtin/msg"
	"github.com/rootless-containers/rootlesskit/v3/pkg/port/builtin/opaque"
	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/relay"
)

const (
	// transparentLimit bounds connecting with the client's address. After that, the node's own address is used.
	transparentLimit = time.Second
	// firstDial is the time limit of the first attempt to connect. Each further one has twice the limit.
	firstDial = 150 * time.Millisecond
)

// NewChild returns the driver's side inside the node. It makes connections like RootlessKit's builtin driver and with the
// same protocol. But each attempt has a time limit and ends when the parent stops waiting for it, and a lack of descriptors
// does not end the driver. The builtin driver still runs: it prepares the node's network for connections that have the
// client's address.
//
// Runs in: child.
func NewChild(log io.Writer) port.ChildDriver {
	return &childDriver{log: log, inner: builtin.NewChildDriver(log)}
}

type childDriver struct {
	log         io.Writer
	inner       port.ChildDriver
	innerSocket string
	watch       *relay.Watch
	transparent bool        // the parent sends the addresses of clients
	supported   atomic.Bool // and the host supports connections with these addresses

	preparing sync.Mutex
	prepared  bool // the network is prepared for these connections
}

// RunChildDriver serves until quit is closed. For a separate network namespace, which nodes do not use, only the builtin
// driver runs.
func (d *childDriver) RunChildDriver(o map[string]string, quit <-chan struct{}, netns string) error {
	socket := o[opaque.SocketPath]
	if netns != "" || socket == "" {
		return d.inner.RunChildDriver(o, quit, netns)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return fmt.Errorf("listen for connection requests: %w", err)
	}
	if d.watch, err = relay.NewWatch(); err != nil {
		return errors.Join(err, l.Close())
	}
	defer d.watch.Close()
	d.transparent = o[opaque.SourceIPTransparent] == "true"
	d.innerSocket = filepath.Join(filepath.Dir(socket), ".bpi.sock")
	o = maps.Clone(o)
	o[opaque.SocketPath] = d.innerSocket
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	innerEnded := make(chan error, 1)
	innerQuit := make(chan struct{})
	go func() { innerEnded <- d.inner.RunChildDriver(o, innerQuit, netns) }() // it reports to the parent that both sides are ready
	served := make(chan error, 1)
	group.Go(func() { served <- d.accept(ctx, l, &group) })
	select {
	case <-quit:
	case err = <-innerEnded: // unexpectedly
		return errors.Join(err, l.Close())
	}
	cancel()
	close(innerQuit)
	return errors.Join(l.Close(), <-innerEnded, <-served)
}

func (d *childDriver) accept(ctx context.Context, l *net.UnixListener, group *sync.WaitGroup) error {
	for {
		c, err := l.AcceptUnix()
		switch {
		case err == nil:
			group.Go(func() {
				defer c.Close()
				if err := d.handle(ctx, c); err != nil {
					_, _ = lowlevelmsgutil.MarshalToWriter(c, &msg.Reply{Error: err.Error()}) // best effort: the parent may have given up
				}
			})
		case errors.Is(err, net.ErrClosed):
			return nil
		default: // most likely no descriptors are left: the parent waits and retries
			_, _ = fmt.Fprintf(d.log, "accept connection requests: %v\n", err) // a log
			if !pauseFor(ctx, acceptPause) {
				return nil
			}
		}
	}
}

// pauseFor waits for d. It returns false if ctx ends first.
func pauseFor(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// handle answers one request. It stops when the parent closes the connection.
func (d *childDriver) handle(ctx context.Context, c *net.UnixConn) error {
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	parent, err := d.watch.Add(c)
	if err != nil {
		return err
	}
	defer parent.Stop()
	parent.OnGone(cancel)
	stop := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(0, 1)) })
	var req msg.Request
	_, err = lowlevelmsgutil.UnmarshalFromReader(c, &req)
	stop()
	switch {
	case err != nil:
		return err
	case req.Type == msg.RequestTypeInit:
		return d.initiate(ctx, c)
	case req.Type == msg.RequestTypeConnect && net.ParseIP(req.IP) != nil:
		return d.connect(ctx, c, req)
	}
	return d.delegate(ctx, c, req)
}

func (d *childDriver) dialInner(ctx context.Context) (*net.UnixConn, func(), error) {
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "unix", d.innerSocket)
	if err != nil {
		return nil, nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	return c.(*net.UnixConn), func() { stop(); _ = c.Close() }, nil
}

func (d *childDriver) initiate(ctx context.Context, c *net.UnixConn) error {
	inner, release, err := d.dialInner(ctx)
	if err != nil {
		return err
	}
	defer release()
	rep, err := msg.Initiate(inner)
	if err != nil {
		return err
	}
	d.supported.Store(rep.SourceIPTransparentBackend != "")
	_, err = lowlevelmsgutil.MarshalToWriter(c, rep)
	return err
}

// delegate passes a request to the builtin driver and its answer to the parent.
func (d *childDriver) delegate(ctx context.Context, c *net.UnixConn, req msg.Request) error {
	answer, rights, err := d.requestInner(ctx, req)
	if err == nil {
		_, _, err = c.WriteMsgUnix(answer, rights, nil)
	}
	return errors.Join(err, closeRights(rights))
}

// prepare makes the builtin driver prepare the network, which it does before its first connection with a client's address.
// The connection is to a port on which most likely no program listens, so that it fails quickly.
func (d *childDriver) prepare(ctx context.Context, req msg.Request) error {
	d.preparing.Lock()
	defer d.preparing.Unlock()
	if d.prepared {
		return nil
	}
	req.IP, req.Port = "127.0.0.1", 1
	_, rights, err := d.requestInner(ctx, req)
	d.prepared = err == nil
	return errors.Join(err, closeRights(rights))
}

// requestInner returns the builtin driver's answer, and the descriptors with it as a control message.
func (d *childDriver) requestInner(ctx context.Context, req msg.Request) (answer, rights []byte, err error) {
	inner, release, err := d.dialInner(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer release()
	if _, err := lowlevelmsgutil.MarshalToWriter(inner, &req); err != nil {
		return nil, nil, err
	}
	if err := inner.CloseWrite(); err != nil {
		return nil, nil, err
	}
	answer, rights = make([]byte, 4096), make([]byte, unix.CmsgSpace(4))
	n, rn, _, _, err := inner.ReadMsgUnix(answer, rights)
	if err == nil && n == 0 {
		err = io.ErrUnexpectedEOF
	}
	return answer[:n], rights[:rn], err
}

func closeRights(rights []byte) error {
	if len(rights) == 0 {
		return nil
	}
	msgs, err := unix.ParseSocketControlMessage(rights)
	errs := []error{err}
	for _, m := range msgs {
		fds, err := unix.ParseUnixRights(&m)
		errs = append(errs, err)
		for _, fd := range fds {
			errs = append(errs, unix.Close(fd))
		}
	}
	return errors.Join(errs...)
}

// connect makes a connection and passes it to the parent.
func (d *childDriver) connect(ctx context.Context, c *net.UnixConn, req msg.Request) error {
	network := strings.TrimRight(req.Proto, "46")
	source := net.ParseIP(req.SourceIP)
	keep := d.transparent && d.supported.Load() && network == "tcp" && source != nil && req.SourcePort != 0 && !source.IsLoopback()
	if keep {
		if err := d.prepare(ctx, req); err != nil {
			return err
		}
	}
	address := net.JoinHostPort(req.IP, strconv.Itoa(req.Port))
	var conn net.Conn
	var err error
	if keep {
		if conn, err = dialAs(ctx, &net.TCPAddr{IP: source, Port: req.SourcePort}, network, address); err != nil {
			_, _ = fmt.Fprintf(d.log, "connect to %s with the client's address: %v\n", address, err) // a log
		}
	}
	if conn == nil {
		if conn, err = dialUntil(ctx, net.Dialer{}, network, address); err != nil {
			return err
		}
	}
	defer conn.Close() // the parent has a duplicate of the descriptor
	raw, err := conn.(syscall.Conn).SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	err = raw.Control(func(fd uintptr) { _, _, sent = c.WriteMsgUnix([]byte("connected"), unix.UnixRights(int(fd)), nil) })
	return errors.Join(err, sent)
}

// dialAs connects with the address of a client, if possible also with its port.
func dialAs(ctx context.Context, client *net.TCPAddr, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, transparentLimit)
	defer cancel()
	return dialUntil(ctx, net.Dialer{LocalAddr: client, Control: setTransparent}, network, address)
}

// dialUntil connects to address until ctx ends. kube-proxy chooses a pod for each connection to a Service, and the kernel tries for
// seconds to reach a pod that has just ended. So an attempt that is not answered soon is replaced by another one, from another
// source port, which most likely gets another pod. The limit grows for destinations that are far away.
func dialUntil(ctx context.Context, dialer net.Dialer, network, address string) (net.Conn, error) {
	for dialer.Timeout = firstDial; ; dialer.Timeout *= 2 {
		conn, err := dialer.DialContext(ctx, network, address)
		if timeout := net.Error(nil); !errors.As(err, &timeout) || !timeout.Timeout() || ctx.Err() != nil {
			return conn, err
		}
		if local, ok := dialer.LocalAddr.(*net.TCPAddr); ok { // kube-proxy chooses the same pod for the same ports
			dialer.LocalAddr = &net.TCPAddr{IP: local.IP}
		}
	}
}

// setTransparent allows a socket to use an address that the node does not have (ip(7), IP_TRANSPARENT).
func setTransparent(network, _ string, c syscall.RawConn) error {
	level, option := unix.SOL_IP, unix.IP_TRANSPARENT
	if strings.HasSuffix(network, "6") {
		level, option = unix.SOL_IPV6, unix.IPV6_TRANSPARENT
	}
	var failed error
	err := c.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), level, option, 1) })
	return errors.Join(err, failed)
}
