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

// Join copies between the client, whose connection conn is, and a server until both directions have ended, the client is
// gone or ctx ends, and closes both. The end of one direction is passed on, and the other goes on. What a client that is gone
// had sent before is still passed to the server, if that takes it. It stops the observation.
func (c *Client) Join(ctx context.Context, conn, server *net.TCPConn, pipes *Pipes) {
	defer server.Close()
	defer conn.Close()
	defer c.Stop()
	j := &join{server: server, lastWords: c.watch.lastWords, observed: c}
	c.OnGone(j.leave)
	stop := context.AfterFunc(ctx, func() { _, _ = conn.Close(), server.Close() }) // the copies end by it
	defer stop()
	var up sync.WaitGroup
	up.Go(func() {
		_ = copyStream(server, conn, pipes, j.taken) // either end may break off
		_ = server.CloseWrite()
	})
	if err := copyStream(conn, server, pipes, nil); err != nil {
		_ = conn.SetReadDeadline(past) // the server is gone: nothing takes what else the client sends
	}
	_ = conn.CloseWrite()
	up.Wait()
}

// past as a deadline ends a read or write that waits.
var past = time.Unix(0, 1)

type join struct {
	server    *net.TCPConn
	lastWords time.Duration
	observed  *Client
	gone      atomic.Bool
}

// leave ends the direction to the client at once, and the other one when the server has taken all data or takes none.
func (j *join) leave() {
	j.gone.Store(true)
	_ = j.server.SetReadDeadline(past)
	_ = j.server.SetWriteDeadline(time.Now().Add(j.lastWords))
}

// taken is told whether the server takes the client's data at present.
func (j *join) taken(now bool) {
	j.observed.stalled.Store(!now)
	if now && j.gone.Load() {
		_ = j.server.SetWriteDeadline(time.Now().Add(j.lastWords))
	}
}

// copyStream copies until the end of from, which is no error. taken, if not nil, is called before and after to has to be
// waited for.
func copyStream(to, from *net.TCPConn, pipes *Pipes, taken func(bool)) error {
	if taken == nil {
		taken = func(bool) {}
	}
	in, err := from.SyscallConn()
	if err != nil {
		return err
	}
	out, err := to.SyscallConn()
	if err != nil {
		return err
	}
	d := &direction{in: in, out: out, taken: taken}
	for {
		err := d.buffered()
		if errors.Is(err, errBulk) {
			err = d.spliced(pipes)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
