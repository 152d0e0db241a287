package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"gotest.tools/v3/assert"
	"gotest.tools/v3/poll"
)

// patience bounds every wait in these tests; normally it takes a few seconds at most.
const patience = time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newWatch(t *testing.T) *Watch {
	t.Helper()
	w, err := NewWatch()
	assert.NilError(t, err)
	t.Cleanup(w.Close)
	w.drainLimit = time.Second
	return w
}

// connection returns the two ends of a TCP connection.
func connection(t *testing.T) (client, server *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	assert.NilError(t, err)
	defer l.Close()
	a, err := net.Dial("tcp4", l.Addr().String())
	assert.NilError(t, err)
	b, err := l.Accept()
	assert.NilError(t, err)
	t.Cleanup(func() { _, _ = a.Close(), b.Close() })
	assert.NilError(t, errors.Join(a.SetDeadline(time.Now().Add(patience)), b.SetDeadline(time.Now().Add(patience))))
	return a.(*net.TCPConn), b.(*net.TCPConn)
}

// joined returns a joined client and server, and a channel that is closed when Join returns.
func joined(t *testing.T, w *Watch, pipes *Pipes) (client, server *net.TCPConn, ended <-chan struct{}) {
	t.Helper()
	client, a := connection(t)
	b, server := connection(t)
	assert.NilError(t, errors.Join(a.SetDeadline(time.Time{}), b.SetDeadline(time.Time{})))
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	observed, err := w.Add(a)
	assert.NilError(t, err)
	go func() { defer close(done); observed.Join(ctx, a, b, pipes) }()
	t.Cleanup(func() { cancel(); <-done })
	return client, server, done
}

func finishes(t *testing.T, ended <-chan struct{}) {
	t.Helper()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("the connections are still open")
	}
}

func open(t *testing.T) (sockets, pipes int) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	assert.NilError(t, err)
	for _, e := range list {
		to, _ := os.Readlink("/proc/self/fd/" + e.Name()) // the directory's own descriptor is closed
		switch {
		case strings.HasPrefix(to, "socket:"):
			sockets++
		case strings.HasPrefix(to, "pipe:"):
			pipes++
		}
	}
	return sockets, pipes
}

// The server never reads, accepts or answers. Both connections are closed in whichever way the client leaves.
func TestClientLeaves(t *testing.T) {
	w := newWatch(t)
	if w.table == nil {
		t.Fatal("no sock_diag")
	}
	for what, leave := range map[string]func(c *net.TCPConn) error{
		"closes":            func(c *net.TCPConn) error { return c.Close() },
		"closes after data": func(c *net.TCPConn) error { _, err := c.Write([]byte("GET /\n")); return errors.Join(err, c.Close()) },
		"resets":            func(c *net.TCPConn) error { return errors.Join(c.SetLinger(0), c.Close()) },
		"ends its direction, then closes": func(c *net.TCPConn) error {
			return errors.Join(c.CloseWrite(), c.Close())
		},
		"closes with undelivered data": func(c *net.TCPConn) error {
			assert.Check(t, c.SetWriteDeadline(time.Now().Add(time.Second)))
			for {
				if _, err := c.Write(make([]byte, 1<<20)); err != nil {
					return c.Close()
				}
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			client, _, ended := joined(t, w, NewPipes(4))
			assert.NilError(t, leave(client))
			finishes(t, ended)
		})
	}
}

// A client that ended its direction waits for the answer. It is checked several times in between.
func TestHalfClosedClientWaits(t *testing.T) {
	w := newWatch(t)
	client, server, ended := joined(t, w, nil)
	other, _, otherEnded := joined(t, w, nil)
	assert.NilError(t, client.CloseWrite())
	_, err := io.ReadAll(server)
	assert.NilError(t, err)
	assert.NilError(t, other.Close())
	finishes(t, otherEnded) // so clients were checked
	_, err = io.WriteString(server, "late answer")
	assert.NilError(t, err)
	assert.NilError(t, server.Close())
	got, err := io.ReadAll(client)
	assert.NilError(t, err)
	assert.Equal(t, string(got), "late answer")
	finishes(t, ended)
}

// Data that a client sent before it left arrives, even if the server's greeting is answered with a reset.
func TestDataOfGoneClientArrives(t *testing.T) {
	w := newWatch(t)
	text := bytes.Repeat([]byte("log line\n"), 5_000)
	for _, greeting := range []string{"", "220 ready\n"} {
		client, server, ended := joined(t, w, NewPipes(4))
		_, err := client.Write(text)
		assert.NilError(t, errors.Join(err, client.Close()))
		_, err = io.WriteString(server, greeting)
		assert.NilError(t, err)
		got, err := io.ReadAll(server)
		assert.NilError(t, err)
		assert.Assert(t, bytes.Equal(got, text), "%d of %d bytes", len(got), len(text))
		finishes(t, ended)
	}
}

func TestServerSpeaksFirst(t *testing.T) {
	client, server, _ := joined(t, newWatch(t), nil)
	_, err := io.WriteString(server, "220 ready\n")
	assert.NilError(t, err)
	got := make([]byte, 10)
	_, err = io.ReadFull(client, got)
	assert.NilError(t, err)
	assert.Equal(t, string(got), "220 ready\n")
}

// Idle pairs use no pipe, before and after a transfer.
func TestIdleCostsTwoDescriptors(t *testing.T) {
	w := newWatch(t)
	sockets, pipes := open(t)
	const pairs = 20
	big := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	for range pairs {
		client, server, _ := joined(t, w, NewPipes(1))
		for range 2 {
			var both sync.WaitGroup
			for _, c := range [][2]*net.TCPConn{{client, server}, {server, client}} {
				both.Go(func() { _, err := c[0].Write(big); assert.Check(t, err) })
				both.Go(func() {
					got := make([]byte, len(big))
					_, err := io.ReadFull(c[1], got)
					assert.Check(t, err)
					assert.Check(t, bytes.Equal(got, big))
				})
			}
			both.Wait()
		}
	}
	poll.WaitOn(t, func(poll.LogT) poll.Result {
		s, p := open(t)
		if s != sockets+4*pairs || p != pipes {
			return poll.Continue("%d sockets and %d pipes", s-sockets, p-pipes)
		}
		return poll.Success()
	}, poll.WithDelay(10*time.Millisecond), poll.WithTimeout(patience))
}

func TestContextEndsPairs(t *testing.T) {
	w := newWatch(t)
	client, a := connection(t)
	b, server := connection(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	observed, err := w.Add(a)
	assert.NilError(t, err)
	observed.Join(ctx, a, b, nil)
	for _, c := range []*net.TCPConn{client, server} {
		_, err := io.ReadAll(c)
		assert.Check(t, !errors.Is(err, os.ErrDeadlineExceeded))
	}
}

func TestBudget(t *testing.T) {
	fill := func(s *Share, factor int) int {
		for s.Take(2, factor) {
		}
		return s.Used()
	}
	for n := 1; n < 6; n++ {
		b := NewBudget(1200)
		var used []int
		for range n {
			used = append(used, fill(b.Share(), 1))
		}
		// The first shares had more at first; with all active, each has one part of n+1. The rest is for others.
		assert.Assert(t, slices.Min(used) > 0, fmt.Sprint(used))
		assert.Assert(t, b.Share().Take(2, 1))
	}
	b := NewBudget(900)
	one, two := b.Share(), b.Share()
	assert.Equal(t, fill(one, 1), 450)
	assert.Equal(t, fill(two, 2), 150)
	assert.Assert(t, !one.Take(2, 1))
	one.Release(450)
	two.Release(150)
	assert.Equal(t, fill(two, 1), 450)
}
