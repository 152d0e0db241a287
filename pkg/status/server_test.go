package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// fakeControl records the requests that it receives.
type fakeControl struct{ calls chan string }

func (f fakeControl) Stop(reason string, podLimit time.Duration) error {
	f.calls <- "stop " + reason + " " + podLimit.String()
	return nil
}

func (f fakeControl) AddForward(s string) (string, error) {
	if s == "" {
		return "", errdefs.WithHint(errdefs.Class(errdefs.ErrConfig, errors.New("nothing")), "8080:80")
	}
	f.calls <- "add " + s
	return "manual/" + s, nil
}

func (f fakeControl) Metrics(context.Context) ([]byte, error) { return []byte("metrics 1\n"), nil }

func (f fakeControl) ResourceUsage(context.Context) ([]byte, error) { return []byte("usage 1\n"), nil }

func (f fakeControl) RemoveForward(s string) (string, error) {
	f.calls <- "remove " + s
	return "manual/" + s, nil
}

func (f fakeControl) Restart(name string) error {
	f.calls <- "restart " + name
	switch name {
	case "unknown":
		return errdefs.WithHint(errdefs.Class(errdefs.ErrConfig, errors.New("no such component")), "try kubelet")
	case "broken":
		return errors.New("it does not end")
	}
	return nil
}

func (f fakeControl) Reload(cfg json.RawMessage) ([]string, error) {
	f.calls <- "reload " + string(cfg)
	return []string{"kubelet"}, nil
}

type running struct {
	hub    *Hub
	client *Client
	ctl    fakeControl
	socket string
	stop   func()
}

func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "st") // a short path, because the length of socket paths is limited
	assert.NilError(t, err)
	t.Cleanup(func() { assert.NilError(t, os.RemoveAll(dir)) })
	return filepath.Join(dir, "run", "node.sock")
}

func serve(t *testing.T) running {
	t.Helper()
	r := running{hub: NewHub(Status{Name: "default"}, Options{}), ctl: fakeControl{make(chan string, 1)}, socket: socketPath(t)}
	l, err := Listen(r.socket)
	assert.NilError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, l, r.hub, r.ctl) }()
	r.client = NewClient(r.socket)
	stopped := false
	r.stop = func() {
		if stopped {
			return
		}
		stopped = true
		r.hub.Close()
		cancel()
		assert.NilError(t, <-served)
	}
	t.Cleanup(func() { r.stop(); r.client.Close() })
	return r
}

func TestStatusOverTheSocket(t *testing.T) {
	t.Parallel()
	r := serve(t)
	becomeReady(r.hub)
	r.hub.Update(func(s *Status) {
		s.Network = Network{Driver: "slirp4netns", DNS: []string{"10.0.2.3"}}
		s.Cgroup.Unenforced = []string{"io"}
	})
	got, err := r.client.Status(t.Context())
	assert.NilError(t, err)
	want := r.hub.Snapshot()
	stripClock(got)
	stripClock(&want)
	assert.DeepEqual(t, *got, want)
	for path, mode := range map[string]os.FileMode{r.socket: 0o600, filepath.Dir(r.socket): 0o700} {
		st, err := os.Stat(path)
		assert.NilError(t, err)
		assert.Equal(t, st.Mode().Perm(), mode)
	}
}

// stripClock removes monotonic clock readings, which JSON does not preserve, so that times can be compared.
func stripClock(s *Status) {
	round := func(t *time.Time) { *t = t.Round(0).UTC() }
	round(&s.Since)
	round(&s.StartedAt)
	for i := range s.Components {
		round(&s.Components[i].Since)
	}
	for i := range s.Conditions {
		round(&s.Conditions[i].Since)
	}
}

func TestWaitStatusReturnsWithTheChange(t *testing.T) {
	t.Parallel()
	r := serve(t)
	s, err := r.client.WaitStatus(t.Context(), 0)
	assert.NilError(t, err)
	got := make(chan *Status, 1)
	go func() {
		s, err := r.client.WaitStatus(context.Background(), s.ResourceVersion)
		assert.Check(t, err)
		got <- s
	}()
	r.hub.SetComponent(Component{Name: "etcd", State: Starting}, nil)
	assert.Equal(t, (<-got).Components[0].Name, "etcd")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = r.client.WaitStatus(ctx, r.hub.Snapshot().ResourceVersion)
	assert.Check(t, is.ErrorIs(err, context.Canceled))
}

func TestEventsOverTheSocket(t *testing.T) {
	t.Parallel()
	r := serve(t)
	becomeReady(r.hub)
	var once []string
	assert.NilError(t, r.client.Events(t.Context(), false, func(e Event) error {
		once = append(once, e.Component+" "+e.To)
		return nil
	}))
	assert.DeepEqual(t, once, []string{"kubelet starting", "kubelet ready", "node ready"})

	seen, followed := make(chan string), make(chan error, 1)
	go func() {
		followed <- r.client.Events(context.Background(), true, func(e Event) error {
			seen <- e.Component + " " + e.To
			return nil
		})
	}()
	for _, want := range once {
		assert.Equal(t, <-seen, want)
	}
	r.hub.SetStopping("calls to")
	assert.Equal(t, <-seen, "node stopping")
	r.hub.SetStopped()
	go r.stop()
	assert.Equal(t, <-seen, "node stopped") // the last event must arrive before the end of the stream
	assert.NilError(t, <-followed)
}

func TestFollowEndsAsTold(t *testing.T) {
	t.Parallel()
	r := serve(t)
	r.hub.Publish(Event{Component: "a"})
	stop := errors.New("enough")
	assert.Check(t, is.ErrorIs(r.client.Events(t.Context(), true, func(Event) error { return stop }), stop))
	ctx, cancel := context.WithCancel(t.Context())
	assert.NilError(t, r.client.Events(ctx, true, func(Event) error { cancel(); return nil }))
}

func TestControl(t *testing.T) {
	t.Parallel()
	r := serve(t)
	assert.NilError(t, r.client.Stop(t.Context(), "test", 3*time.Second))
	assert.Equal(t, <-r.ctl.calls, "stop test 3s")
	assert.NilError(t, r.client.Restart(t.Context(), "kubelet"))
	assert.Equal(t, <-r.ctl.calls, "restart kubelet")

	owner, err := r.client.AddForward(t.Context(), "8080:80")
	assert.NilError(t, err)
	assert.Equal(t, owner, "manual/8080:80")
	assert.Equal(t, <-r.ctl.calls, "add 8080:80")
	_, err = r.client.RemoveForward(t.Context(), "8080:80")
	assert.NilError(t, err)
	assert.Equal(t, <-r.ctl.calls, "remove 8080:80")
	_, err = r.client.AddForward(t.Context(), "")
	assert.Error(t, err, "add forward : nothing")
	assert.ErrorIs(t, err, errdefs.ErrConfig)
	assert.Equal(t, errdefs.ReportOf(err).Hints[0], "8080:80")
	err = r.client.Restart(t.Context(), "unknown")
	<-r.ctl.calls
	assert.Error(t, err, "restart unknown: no such component")
	assert.Check(t, is.ErrorIs(err, errdefs.ErrConfig))
	assert.DeepEqual(t, errdefs.ReportOf(err).Hints, []string{"try kubelet"})
	assert.Error(t, r.client.Restart(t.Context(), "broken"), "restart broken: it does not end")
	<-r.ctl.calls
}

func TestNotRunning(t *testing.T) {
	t.Parallel()
	socket := socketPath(t)
	c := NewClient(socket)
	defer c.Close()
	_, err := c.Status(t.Context())
	assert.Check(t, is.ErrorIs(err, errdefs.ErrNotRunning))
	l, err := Listen(socket)
	assert.NilError(t, err)
	l.SetUnlinkOnClose(false)
	assert.NilError(t, l.Close())
	_, err = c.Status(t.Context()) // the socket of a node that was killed
	assert.Check(t, is.ErrorIs(err, errdefs.ErrNotRunning))
	l, err = Listen(socket) // replaces the stale socket
	assert.NilError(t, err)
	_, err = Listen(socket)
	assert.Check(t, is.ErrorIs(err, errdefs.ErrAlreadyRunning))
	assert.NilError(t, l.Close())
}

// TestNoResponse checks that requests to a process that does not respond have a limit.
func TestNoResponse(t *testing.T) {
	t.Parallel()
	l, err := Listen(socketPath(t))
	assert.NilError(t, err)
	defer func() { _ = l.Close() }() // the kernel accepts connections, as for a stopped process
	c := newClient(l.Addr().String(), 10*time.Millisecond)
	defer c.Close()
	for name, request := range map[string]func() error{
		"status":  func() error { _, err := c.Status(t.Context()); return err },
		"events":  func() error { return c.Events(t.Context(), true, nil) },
		"stop":    func() error { return c.Stop(t.Context(), "", 0) },
		"forward": func() error { _, err := c.AddForward(t.Context(), "1:1"); return err },
	} {
		err := request()
		assert.ErrorIs(t, err, errdefs.ErrTimeout, name)
		assert.ErrorContains(t, err, "no response from the node role", name)
	}
}

// TestServerKilledMeanwhile checks the error class when the server is killed during a request.
func TestServerKilledMeanwhile(t *testing.T) {
	t.Parallel()
	testutil.Require(t, testutil.UserNS)
	srv := inUserNS(t)
	c := NewClient(srv.socket)
	defer c.Close()
	s, err := c.Status(t.Context())
	assert.NilError(t, err)
	ended := make(chan error, 1)
	go func() {
		_, err := c.WaitStatus(context.Background(), s.ResourceVersion)
		ended <- err
	}()
	assert.NilError(t, srv.cmd.Process.Kill())
	_ = srv.cmd.Wait()
	assert.Check(t, is.ErrorIs(<-ended, errdefs.ErrNotRunning))
}

func TestOnlyTheOwnAccountIsServed(t *testing.T) {
	t.Parallel()
	testutil.Require(t, testutil.UserNS)
	srv := inUserNS(t)
	c := NewClient(srv.socket)
	defer c.Close()
	s, err := c.Status(t.Context()) // as the same account, from outside of the user namespace
	assert.NilError(t, err)
	assert.Equal(t, s.Name, "inside")

	testutil.Require(t, testutil.Root)
	// Open the permissions for the other account, so that only the check of the credentials can refuse it.
	const stranger = 65533
	assert.NilError(t, os.Chmod(filepath.Dir(filepath.Dir(srv.socket)), 0o755))
	assert.NilError(t, os.Chmod(filepath.Dir(srv.socket), 0o755))
	assert.NilError(t, os.Chmod(srv.socket, 0o666))
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envAsk+"="+srv.socket)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: stranger, Gid: stranger}}
	out, err := cmd.CombinedOutput()
	assert.ErrorContains(t, err, "exit status 1", "%s", out)
	assert.Check(t, is.Contains(string(out), "the node ended during the request"))
}

const (
	envServe = "STATUS_TEST_SERVE"
	envAsk   = "STATUS_TEST_ASK"
)

type server struct {
	cmd    *exec.Cmd
	socket string
}

// inUserNS starts a server process in a new user namespace, as the node role does.
func inUserNS(t *testing.T) server {
	t.Helper()
	s := server{socket: socketPath(t), cmd: exec.Command("/proc/self/exe")}
	s.cmd.Env = append(os.Environ(), envServe+"="+s.socket)
	s.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
		Pdeathsig:   syscall.SIGKILL,
	}
	ready, err := s.cmd.StdoutPipe()
	assert.NilError(t, err)
	s.cmd.Stderr = os.Stderr
	assert.NilError(t, s.cmd.Start())
	t.Cleanup(func() { _ = s.cmd.Process.Kill(); _ = s.cmd.Wait() })
	b := make([]byte, 1)
	_, err = ready.Read(b)
	assert.NilError(t, err)
	return s
}

// serveIfAsked runs the server process of a test if the environment requests it.
func serveIfAsked() bool {
	ctx := context.Background()
	if socket := os.Getenv(envAsk); socket != "" {
		if _, err := NewClient(socket).Status(ctx); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return true
	}
	socket := os.Getenv(envServe)
	if socket == "" {
		return false
	}
	l, err := Listen(socket)
	if err == nil {
		fmt.Print("+")
		err = Serve(ctx, l, NewHub(Status{Name: "inside"}, Options{}), fakeControl{})
	}
	fmt.Fprintln(os.Stderr, err)
	return true
}
