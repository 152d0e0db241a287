package portdriver

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
	"gotest.tools/v3/poll"
)

// mute returns a port of the node's side whose program accepts no connections. The kernel accepts up to backlog+1 connections and
// does not answer further ones.
func mute(t *testing.T, backlog int) int {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	assert.NilError(t, err)
	t.Cleanup(func() { assert.Check(t, unix.Close(fd)) })
	address := &unix.SockaddrInet4{}
	copy(address.Addr[:], net.ParseIP(nodeSide).To4())
	assert.NilError(t, unix.Bind(fd, address))
	assert.NilError(t, unix.Listen(fd, backlog))
	own, err := unix.Getsockname(fd)
	assert.NilError(t, err)
	return own.(*unix.SockaddrInet4).Port
}

func sockets(t *testing.T) (n int) {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	assert.NilError(t, err)
	for _, e := range list {
		if to, _ := os.Readlink("/proc/self/fd/" + e.Name()); strings.HasPrefix(to, "socket:") { // the directory's own descriptor is closed
			n++
		}
	}
	return n
}

func waitSockets(t *testing.T, want int) {
	t.Helper()
	poll.WaitOn(t, func(poll.LogT) poll.Result {
		if n := sockets(t); n > want {
			return poll.Continue("%d sockets, want %d", n, want)
		}
		return poll.Success()
	}, poll.WithDelay(50*time.Millisecond), poll.WithTimeout(time.Minute))
}

// A hundred clients of a program that accepts no connections leave in different ways, most of them while the connection inside is
// still being made. All their resources are released, and the program is not affected.
func TestClientsLeave(t *testing.T) {
	d, _ := run(t)
	for what, backlog := range map[string]int{"accepted by the kernel": 200, "connecting": 10} {
		t.Run(what, func(t *testing.T) {
			s := spec(freePort(t), mute(t, backlog))
			st := add(t, d, s)
			before := sockets(t)
			for i := range 100 {
				c := dial(t, s.ParentPort)
				var err error
				switch i % 4 {
				case 1:
					_, err = fmt.Fprintln(c, "GET /")
				case 2:
					err = c.SetLinger(0)
				case 3:
					err = c.CloseWrite()
				}
				assert.NilError(t, errors.Join(err, c.Close()))
			}
			waitSockets(t, before)
			assert.NilError(t, d.RemovePort(t.Context(), st.ID))
		})
	}
}

// faults receives the reports of the driver.
type faults chan []Fault

func (f faults) next(t *testing.T) []Fault {
	t.Helper()
	select {
	case list := <-f:
		return list
	case <-time.After(time.Minute):
		t.Fatal("no fault was reported")
		return nil
	}
}

// A port at its limit leaves descriptors for others and is reported. It accepts connections again when some have ended.
func TestLimit(t *testing.T) {
	reported := make(faults, 8)
	essential := freePort(t)
	d, _ := runWith(t, Options{
		Log: io.Discard, StateDir: shortDir(t), OnFaults: func(f []Fault) error { reported <- f; return nil },
		Essential: func(s port.Spec) bool { return s.ParentPort == essential }, Descriptors: 160, // 100 for others, 40 for the essential port
	})
	target := serve(t, echo)
	busy, other := spec(freePort(t), target), spec(freePort(t), target)
	for _, s := range []port.Spec{busy, other, spec(essential, target)} {
		add(t, d, s)
	}
	var idle []*net.TCPConn
	for range 40 {
		idle = append(idle, dial(t, busy.ParentPort))
	}
	list := reported.next(t)
	assert.Equal(t, len(list), 1)
	assert.Equal(t, list[0].Spec, busy)
	assert.Equal(t, list[0].Reason, ReasonConnections)
	assert.Equal(t, list[0].Message, "connection limit reached: 24 connections are open; new connections wait") // 2 for each port of 100, and half of the rest
	answers(t, dial(t, other.ParentPort))
	answers(t, dial(t, essential))
	answers(t, idle[0])
	last := dial(t, busy.ParentPort)
	for _, c := range idle {
		assert.NilError(t, c.Close())
	}
	answers(t, last) // it was waiting
	assert.Equal(t, len(reported.next(t)), 0)
}

// A port without a descriptor for its listener is refused with the kernel's error.
func TestNoDescriptorForAPort(t *testing.T) {
	d, _ := runWith(t, Options{Log: io.Discard, StateDir: shortDir(t), Descriptors: 16})
	var err error
	for i := 0; err == nil && i < 10; i++ {
		_, err = d.AddPort(t.Context(), spec(freePort(t), 1))
	}
	assert.ErrorIs(t, err, syscall.EMFILE)
	assert.ErrorContains(t, err, "too many open files")
}

// A short lack of descriptors is not a fault; one that lasts is reported once.
func TestMonitor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reports := make(chan []Fault, 8)
		refuse := true
		m := newMonitor(func(f []Fault) error {
			if refuse {
				refuse = false
				return errors.New("no descriptor for the file")
			}
			reports <- f
			return nil
		})
		quit := make(chan struct{})
		ended := make(chan struct{})
		go func() { defer close(ended); m.run(quit) }()
		a, b := &forward{spec: spec(1, 1)}, &forward{spec: spec(2, 2)}
		m.short(a, ReasonFiles, "a moment")
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, len(reports), 0)
		for range 100 {
			m.short(a, ReasonConnections, "longer")
			time.Sleep(fullPause * 10)
		}
		synctest.Wait()
		assert.Equal(t, len(reports), 1)
		assert.DeepEqual(t, <-reports, []Fault{{Spec: a.spec, Reason: ReasonConnections, Message: "longer"}})
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, len(reports), 1)
		assert.Equal(t, len(<-reports), 0)
		for range 10 {
			m.short(b, ReasonFiles, "removed")
			time.Sleep(time.Second)
		}
		m.forget(b)
		time.Sleep(time.Minute)
		synctest.Wait()
		assert.Equal(t, len(reports), 2)
		assert.Equal(t, len(<-reports), 1)
		assert.Equal(t, len(<-reports), 0)
		close(quit)
		<-ended
	})
}

// roleLimited makes the test binary run the test of a process that has no descriptors left in spite of the budget.
const roleLimited = "PORTDRIVER_TEST_LIMITED"

// Both sides survive a lack of descriptors: clients wait and are served afterwards.
func TestNoDescriptorsLeft(t *testing.T) {
	if os.Getenv(roleLimited) == "" {
		t.Parallel()
		cmd := exec.Command("/proc/self/exe", "-test.run=^TestNoDescriptorsLeft$", "-test.v")
		cmd.Env = append(os.Environ(), roleLimited+"=1")
		out, err := cmd.CombinedOutput()
		assert.NilError(t, err, "%s", out)
		return
	}
	const limit = 100
	reported := make(faults, 8)
	d, _ := runWith(t, Options{Log: io.Discard, StateDir: shortDir(t), OnFaults: func(f []Fault) error { reported <- f; return nil }})
	s := spec(freePort(t), serve(t, echo))
	add(t, d, s)
	answers(t, dial(t, s.ParentPort))
	assert.NilError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: limit}))
	c := dial(t, s.ParentPort)
	answers(t, c)
	// Several clients, because the driver may still close descriptors of the connections above.
	var clients []*later
	for range 6 {
		clients = append(clients, dialLater(t, s.ParentPort))
	}
	var fill []int
	for {
		fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.EMFILE) {
			break
		}
		assert.NilError(t, err)
		fill = append(fill, fd)
	}
	for _, client := range clients {
		client.connect()
	}
	list := reported.next(t)
	assert.Equal(t, len(list), 1)
	assert.Equal(t, list[0].Reason, ReasonFiles)
	assert.Assert(t, strings.Contains(list[0].Message, "too many open files"), list[0].Message)
	answers(t, c) // open connections continue
	for _, fd := range fill {
		assert.NilError(t, unix.Close(fd))
	}
	for _, client := range clients {
		answers(t, client.conn())
	}
	for len(reported.next(t)) > 0 { // until the fault has ended
	}
}

// later is a client whose socket is created before it connects.
type later struct {
	t    *testing.T
	fd   int
	port int
}

func dialLater(t *testing.T, p int) *later {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	assert.NilError(t, err)
	return &later{t: t, fd: fd, port: p}
}

func (l *later) connect() {
	l.t.Helper()
	address := &unix.SockaddrInet4{Port: l.port}
	copy(address.Addr[:], net.ParseIP(hostSide).To4())
	assert.NilError(l.t, unix.Connect(l.fd, address))
}

func (l *later) conn() net.Conn {
	l.t.Helper()
	f := os.NewFile(uintptr(l.fd), "later")
	defer f.Close() // FileConn duplicates the descriptor
	c, err := net.FileConn(f)
	assert.NilError(l.t, err)
	l.t.Cleanup(func() { _ = c.Close() })
	assert.NilError(l.t, c.SetDeadline(time.Now().Add(patience)))
	return c
}

// The child stops connecting when the parent no longer waits for the connection.
func TestChildGivesUpWithTheParent(t *testing.T) {
	d, _ := run(t)
	target := mute(t, 0)
	full, err := net.Dial("tcp4", net.JoinHostPort(nodeSide, strconv.Itoa(target))) // the queue is full
	assert.NilError(t, err)
	defer full.Close()
	s := spec(freePort(t), target)
	add(t, d, s)
	before := sockets(t)
	for range 20 {
		c := dial(t, s.ParentPort)
		assert.NilError(t, errors.Join(c.SetLinger(0), c.Close()))
	}
	waitSockets(t, before) // both sides are in this process
}
