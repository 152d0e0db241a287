package relay

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Join copies between the client's connection conn and a server until both directions have ended, the client has gone, or
// ctx ends. Then it closes both and stops the observation of the client. The end of one direction is passed on, and the
// other direction continues. Data that the client sent before it went is still passed to the server if the server accepts
// it.
func (c *Client) Join(ctx context.Context, conn, server *net.TCPConn, pipes *Pipes) {
	defer server.Close()
	defer conn.Close()
	defer c.Stop()
	j := &join{server: server, drainLimit: c.watch.drainLimit, observed: c}
	c.OnGone(j.leave)
	stop := context.AfterFunc(ctx, func() { _, _ = conn.Close(), server.Close() }) // unblocks the copies
	defer stop()
	var up sync.WaitGroup
	up.Go(func() {
		_ = copyStream(server, conn, pipes, j.writable) // either side may have closed
		_ = server.CloseWrite()
	})
	err := copyStream(conn, server, pipes, nil)
	if toClient := new(writeError); err != nil && !errors.As(err, &toClient) && !j.gone.Load() {
		_ = conn.SetReadDeadline(past) // the server has gone: no more data of the client can be delivered
	}
	_ = conn.CloseWrite()
	up.Wait()
}

// past is a deadline that ends a waiting read or write.
var past = time.Unix(0, 1)

type join struct {
	server     *net.TCPConn
	drainLimit time.Duration
	observed   *Client
	gone       atomic.Bool
}

// leave ends the direction to the client immediately, and the other one when the server has accepted all data or accepts
// none.
func (j *join) leave() {
	j.gone.Store(true)
	_ = j.server.SetReadDeadline(past)
	_ = j.server.SetWriteDeadline(time.Now().Add(j.drainLimit))
}

// writable records whether the server currently accepts the client's data.
func (j *join) writable(now bool) {
	j.observed.stalled.Store(!now)
	if now && j.gone.Load() {
		_ = j.server.SetWriteDeadline(time.Now().Add(j.drainLimit))
	}
}

// copyStream copies until the end of from, which is not an error. writable, if not nil, is called with false before a wait
// for to, and with true after it.
func copyStream(to, from *net.TCPConn, pipes *Pipes, writable func(bool)) error {
	if writable == nil {
		writable = func(bool) {}
	}
	in, err := from.SyscallConn()
	if err != nil {
		return err
	}
	out, err := to.SyscallConn()
	if err != nil {
		return err
	}
	d := &direction{in: in, out: out, writable: writable}
	for {
		err := d.copyBuffered()
		if errors.Is(err, errBulk) {
			err = d.copySpliced(pipes)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
