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

// The test binary runs again as a puppet: it calls the socket named by envStage, introduces itself, and does what it is told
// there. The test learns of its end by the end of the connection, which the kernel brings about.
const (
	envStage = "SUPERVISOR_TEST_STAGE"
	envName  = "SUPERVISOR_TEST_NAME"
	// envGroup makes the binary a supervisor of one puppet instead.
	envGroup = "SUPERVISOR_TEST_GROUP"
)

// patience is how long a test waits for what must come; it bounds a failure and delays no success.
const patience = time.Minute

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(envGroup) != "":
		os.Exit(groupMain())
	case os.Getenv(envStage) != "":
		os.Exit(puppetMain())
	}
	testutil.QuickChildren()
	goleak.VerifyTestMain(m)
}

func puppetMain() int {
	conn, err := net.Dial("unix", os.Getenv(envStage))
	if err != nil {
		fmt.Println(err)
		return 99
	}
	_, _ = fmt.Fprintln(conn, os.Getenv(envName), os.Getpid()) // the loop ends where the test has gone
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
	return 98 // The test has gone.
}

// groupMain supervises one puppet until it is killed.
func groupMain() int {
	g, err := New([]Unit{{Name: "only", Process: func() (Process, error) { return puppetProcess(os.Getenv(envStage), "only"), nil }}}, Options{})
	if err == nil {
		err = g.Run(context.Background())
	}
	fmt.Println(err)
	return 97
}

func puppetProcess(stage, name string) Process {
	exe, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return Process{Path: exe, Env: append(os.Environ(), envGroup+"=", envStage+"="+stage, envName+"="+name)}
}

// stage is where the puppets of one test call in.
type stage struct {
	t    *testing.T
	path string
	l    *net.UnixListener

	mu      sync.Mutex
	early   []*puppet // called in while another one was awaited
	puppets []*puppet
}

type puppet struct {
	t    *testing.T
	name string
	pid  int
	conn net.Conn
	in   *bufio.Reader
}

func newStage(t *testing.T) *stage {
	t.Helper()
	dir, err := os.MkdirTemp("", "sv") // Short: a socket path has about 100 bytes.
	assert.NilError(t, err)
	path := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	assert.NilError(t, err)
	s := &stage{t: t, path: path, l: l}
	t.Cleanup(func() {
		// The puppets end when their connection does.
		assert.Check(t, l.Close())
		for _, p := range s.puppets {
			p.conn.Close()
		}
		assert.Check(t, os.RemoveAll(dir))
	})
	return s
}

// unit returns a unit that runs a puppet of the name.
func (s *stage) unit(name string, needs ...string) Unit {
	u := Unit{Name: name, Process: func() (Process, error) { return puppetProcess(s.path, name), nil }, StopGrace: patience}
	for _, n := range needs {
		u.Needs = append(u.Needs, Need{Name: n})
	}
	return u
}

// enter waits for the next puppet of the name to call in.
func (s *stage) enter(name string) *puppet {
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
		assert.NilError(s.t, err, "waiting for puppet %s", name)
		p := &puppet{t: s.t, conn: conn, in: bufio.NewReader(conn)}
		s.puppets = append(s.puppets, p)
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

// do has the puppet do something and returns its answer; it shows, too, that it is alive.
func (p *puppet) do(command string) string {
	p.t.Helper()
	assert.NilError(p.t, p.conn.SetDeadline(time.Now().Add(patience)))
	_, err := fmt.Fprintln(p.conn, command)
	assert.NilError(p.t, err)
	answer, err := p.in.ReadString('\n')
	assert.NilError(p.t, err, "puppet %s: %s", p.name, command)
	return strings.TrimSpace(answer)
}

// exit has the puppet end by itself.
func (p *puppet) exit(code int) {
	p.t.Helper()
	_, err := fmt.Fprintln(p.conn, "exit", code)
	assert.NilError(p.t, err)
	p.gone()
}

func (p *puppet) kill() {
	p.t.Helper()
	assert.NilError(p.t, syscall.Kill(p.pid, syscall.SIGKILL))
	p.gone()
}

// gone waits for the end of the puppet.
func (p *puppet) gone() {
	p.t.Helper()
	assert.NilError(p.t, p.conn.SetDeadline(time.Now().Add(patience)))
	for {
		_, err := p.in.ReadString('\n')
		if err != nil {
			assert.Assert(p.t, !errors.Is(err, os.ErrDeadlineExceeded), "puppet %s is still there", p.name)
			return
		}
	}
}

// show is a group that runs.
type show struct {
	t    *testing.T
	g    *Group
	stop context.CancelFunc
	done chan struct{}
	err  error // valid when done is closed

	mu    sync.Mutex
	steps []Transition
}

// perform runs a group of units until the test, or stop, ends it.
func perform(t *testing.T, o Options, units ...Unit) *show {
	t.Helper()
	s := &show{t: t, done: make(chan struct{})}
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

func (s *show) begin() *show {
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
func (s *show) end() error {
	s.stop()
	<-s.done
	return s.err
}

func (s *show) await(name string, state State) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	assert.NilError(s.t, s.g.WaitFor(ctx, name, state))
}

func (s *show) status(name string) UnitStatus {
	for _, u := range s.g.Status() {
		if u.Name == name {
			return u
		}
	}
	s.t.Fatalf("no unit %s", name)
	return UnitStatus{}
}

// seen returns the transitions so far.
func (s *show) seen() []Transition {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Transition(nil), s.steps...)
}

// path returns the states that the unit went through, "waiting" first.
func (s *show) path(name string) string {
	states := []string{string(Waiting)}
	for _, tr := range s.seen() {
		if tr.Unit == name {
			states = append(states, string(tr.To))
		}
	}
	return strings.Join(states, " ")
}
