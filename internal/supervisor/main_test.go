package supervisor

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// The test binary runs itself as a helper process: it connects to the socket named by envControl, sends its name, and
// executes the commands that it receives. The kernel closes the connection when the process ends, which the test notices.
const (
	envControl = "SUPERVISOR_TEST_CONTROL"
	envName    = "SUPERVISOR_TEST_NAME"
	// envGroup makes the binary run a supervisor of one helper instead.
	envGroup = "SUPERVISOR_TEST_GROUP"
)

// patience is the timeout for events that must happen.
const patience = time.Minute

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(envGroup) != "":
		os.Exit(groupMain())
	case os.Getenv(envControl) != "":
		os.Exit(helperMain())
	}
	testutil.QuickChildren()
	goleak.VerifyTestMain(m)
}

func helperMain() int {
	conn, err := net.Dial("unix", os.Getenv(envControl))
	if err != nil {
		fmt.Println(err)
		return 99
	}
	_, _ = fmt.Fprintln(conn, os.Getenv(envName), os.Getpid()) // fails when the test has ended; then the loop ends
	in := bufio.NewScanner(conn)
	for in.Scan() {
		verb, arg, _ := strings.Cut(in.Text(), " ")
		answer := "ok"
		switch verb {
		case "exit":
			code, _ := strconv.Atoi(arg)
			return code
		case "print":
			fmt.Println(arg)
		case "flood":
			n, _ := strconv.Atoi(arg)
			for i := range n {
				fmt.Println("line", i, strings.Repeat("x", 100))
			}
		case "deaf":
			signal.Ignore(syscall.SIGTERM)
		case "polite":
			asked := make(chan os.Signal, 1)
			signal.Notify(asked, syscall.SIGTERM)
			go func() {
				<-asked
				fmt.Println("bye")
				os.Exit(0)
			}()
		case "spawn", "spawn-session":
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), envName+"="+arg)
			cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: verb == "spawn-session"}
			if err := cmd.Start(); err != nil {
				answer = err.Error()
			}
		case "read":
			data, err := os.ReadFile(arg)
			answer = strings.ReplaceAll(strings.TrimSpace(string(data)), "\n", " ")
			if err != nil {
				answer = err.Error()
			}
		case "pgrp":
			answer = strconv.Itoa(syscall.Getpgrp())
		case "where":
			dir, _ := os.Getwd()
			answer = fmt.Sprintln(dir, os.Args, os.Getenv("EXTRA"))
		}
		_, _ = fmt.Fprintln(conn, strings.TrimSpace(answer))
	}
	return 98 // The test has ended.
}

// groupMain supervises one helper until it is killed.
func groupMain() int {
	g, err := New([]Unit{{Name: "only", Process: func() (Process, error) { return helperProcess(os.Getenv(envControl), "only"), nil }}}, Options{})
	if err == nil {
		err = g.Run(context.Background())
	}
	fmt.Println(err)
	return 97
}

func helperProcess(control, name string) Process {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return Process{Path: exe, Env: append(os.Environ(), envGroup+"=", envControl+"="+control, envName+"="+name)}
}

// control accepts the connections of the helpers of one test.
type control struct {
	t    *testing.T
	path string
	l    *net.UnixListener

	mu      sync.Mutex
	early   []*helper // connected while the test waited for another one
	helpers []*helper
}

type helper struct {
	t    *testing.T
	name string
	pid  int
	conn net.Conn
	in   *bufio.Reader
}

func newControl(t *testing.T) *control {
	t.Helper()
	dir, err := os.MkdirTemp("", "sv") // Short: a socket path has about 100 bytes.
	assert.NilError(t, err)
	path := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	assert.NilError(t, err)
	s := &control{t: t, path: path, l: l}
	t.Cleanup(func() {
		// The helpers end when their connection is closed.
		assert.Check(t, l.Close())
		for _, p := range s.helpers {
			p.conn.Close()
		}
		assert.Check(t, os.RemoveAll(dir))
	})
	return s
}

// unit returns a unit that runs a helper of that name.
func (s *control) unit(name string, needs ...string) Unit {
	u := Unit{Name: name, Process: func() (Process, error) { return helperProcess(s.path, name), nil }, StopGrace: patience}
	for _, n := range needs {
		u.Needs = append(u.Needs, Need{Name: n})
	}
	return u
}

// accept waits for the next helper of that name to connect.
func (s *control) accept(name string) *helper {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, p := range s.early {
		if p.name == name {
			s.early = append(s.early[:i], s.early[i+1:]...)
			return p
		}
	}
	for {
		assert.NilError(s.t, s.l.SetDeadline(time.Now().Add(patience)))
		conn, err := s.l.Accept()
		assert.NilError(s.t, err, "waiting for helper %s", name)
		p := &helper{t: s.t, conn: conn, in: bufio.NewReader(conn)}
		s.helpers = append(s.helpers, p)
		line, err := p.in.ReadString('\n')
		assert.NilError(s.t, err)
		_, err = fmt.Sscan(line, &p.name, &p.pid)
		assert.NilError(s.t, err)
		if p.name == name {
			return p
		}
		s.early = append(s.early, p)
	}
}

// do sends a command to the helper and returns its answer. Any answer also shows that the helper is alive.
func (p *helper) do(command string) string {
	p.t.Helper()
	assert.NilError(p.t, p.conn.SetDeadline(time.Now().Add(patience)))
	_, err := fmt.Fprintln(p.conn, command)
	assert.NilError(p.t, err)
	answer, err := p.in.ReadString('\n')
	assert.NilError(p.t, err, "helper %s: %s", p.name, command)
	return strings.TrimSpace(answer)
}

// exit makes the helper exit with code.
func (p *helper) exit(code int) {
	p.t.Helper()
	_, err := fmt.Fprintln(p.conn, "exit", code)
	assert.NilError(p.t, err)
	p.gone()
}

func (p *helper) kill() {
	p.t.Helper()
	assert.NilError(p.t, syscall.Kill(p.pid, syscall.SIGKILL))
	p.gone()
}

// gone waits until the helper has ended.
func (p *helper) gone() {
	p.t.Helper()
	assert.NilError(p.t, p.conn.SetDeadline(time.Now().Add(patience)))
	for {
		_, err := p.in.ReadString('\n')
		if err != nil {
			assert.Assert(p.t, !errors.Is(err, os.ErrDeadlineExceeded), "helper %s has not ended", p.name)
			return
		}
	}
}

// testGroup is a running group.
type testGroup struct {
	t    *testing.T
	g    *Group
	stop context.CancelFunc
	done chan struct{}
	err  error // valid when done is closed

	mu    sync.Mutex
	steps []Transition
}

// newTestGroup creates a group of units; begin runs it until the test ends or end is called.
func newTestGroup(t *testing.T, o Options, units ...Unit) *testGroup {
	t.Helper()
	s := &testGroup{t: t, done: make(chan struct{})}
	o.OnTransition = func(tr Transition) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.steps = append(s.steps, tr)
		if t.Failed() || testing.Verbose() {
			t.Logf("%s: %s -> %s: %s", tr.Unit, tr.From, tr.To, tr.Reason)
		}
	}
	g, err := New(units, o)
	assert.NilError(t, err)
	s.g = g
	return s
}

func (s *testGroup) begin() *testGroup {
	ctx, stop := context.WithCancel(context.Background())
	s.stop = stop
	go func() {
		defer close(s.done)
		s.err = s.g.Run(ctx)
	}()
	s.t.Cleanup(func() {
		stop()
		<-s.done
	})
	return s
}

// end stops the group and returns what Run returned.
func (s *testGroup) end() error {
	s.stop()
	<-s.done
	return s.err
}

func (s *testGroup) await(name string, state State) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	assert.NilError(s.t, s.g.WaitFor(ctx, name, state))
}

func (s *testGroup) status(name string) UnitStatus {
	for _, u := range s.g.Status() {
		if u.Name == name {
			return u
		}
	}
	s.t.Fatalf("no unit %s", name)
	return UnitStatus{}
}

// seen returns the transitions so far.
func (s *testGroup) seen() []Transition {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Transition(nil), s.steps...)
}

// path returns the states of the unit so far, starting with "waiting".
func (s *testGroup) path(name string) string {
	states := []string{string(Waiting)}
	for _, tr := range s.seen() {
		if tr.Unit == name {
			states = append(states, string(tr.To))
		}
	}
	return strings.Join(states, " ")
}
