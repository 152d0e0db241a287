package cristop

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/rootlessnode/rootlessnode/internal/criclient"
)

// minute returns a request with a time limit of one minute, of which ten seconds are reserved for critical pods.
func minute(pods ...criclient.Pod) criclient.Request {
	return criclient.Request{Limit: time.Minute, CriticalReserve: 10 * time.Second, Known: true, Pods: pods}
}

// TestHookAndGrace checks that the hook runs first, that its time is part of the grace period, and that the stop does not wait longer than
// needed.
func TestHookAndGrace(t *testing.T) {
	t.Parallel()
	r := stop(t, &fakeRuntime{all: []*fakeContainer{
		{namespace: "n", pod: "db", name: "c", grace: 30, preStop: execHook("save", "all"), hookTakes: 4 * time.Second, termTakes: 20 * time.Second},
	}}, minute())
	assert.NilError(t, r.err)
	assert.DeepEqual(t, r.log, []string{
		"0s db/c hook save all", "4s db/c hook over", "4s db/c TERM, KILL after 26s", "24s db/c ended",
	})
	assert.Equal(t, r.took, 24*time.Second)
	assert.DeepEqual(t, r.waiting, [][]string{{"n/db (preStop hook)"}, {"n/db (stop signal sent, up to 26s)"}, {}})
}

func TestTimes(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		c     fakeContainer
		limit time.Duration
		log   []string
		warns []string
	}{
		{"ignores TERM", fakeContainer{grace: 5, termTakes: forever}, time.Minute,
			[]string{"0s p/c TERM, KILL after 5s", "5s p/c ended"}, nil},
		{"grace beyond the limit", fakeContainer{grace: 3600, termTakes: forever}, time.Minute,
			[]string{"0s p/c TERM, KILL after 59s", "59s p/c ended"}, nil},
		{"no grace", fakeContainer{grace: 0, preStop: execHook("x"), termTakes: forever}, time.Minute,
			[]string{"0s p/c TERM, KILL after 2s", "2s p/c ended"}, nil},
		{"stuck in its hook", fakeContainer{grace: 10, preStop: execHook("x"), hookTakes: forever, termTakes: time.Second}, time.Minute,
			[]string{"0s p/c hook x", "10s p/c TERM, KILL after 2s", "11s p/c ended"},
			[]string{"preStop hook of container c of pod n/p: not finished within the grace period"}},
		{"stuck in its hook beyond the limit", fakeContainer{grace: 3600, preStop: execHook("x"), hookTakes: forever, termTakes: forever}, 20 * time.Second,
			[]string{"0s p/c hook x", "17s p/c TERM, KILL after 2s", "19s p/c ended"},
			[]string{"preStop hook of container c of pod n/p: not finished within the grace period"}},
		{"hook fails", fakeContainer{grace: 30, preStop: execHook("x", "secret"), hookCode: 7, termTakes: 20 * time.Second}, time.Minute,
			[]string{"0s p/c hook x secret", "0s p/c hook over", "0s p/c TERM, KILL after 30s", "20s p/c ended"},
			[]string{`preStop hook of container c of pod n/p: run ["x"]: exit code 7`}},
		{"sleeps", fakeContainer{grace: 30, preStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 3}}}, time.Minute,
			[]string{"3s p/c TERM, KILL after 27s", "3s p/c ended"}, nil},
		{"unknown hook", fakeContainer{grace: 30, preStop: &corev1.LifecycleHandler{}}, time.Minute,
			[]string{"0s p/c TERM, KILL after 30s", "0s p/c ended"},
			[]string{"preStop hook of container c of pod n/p: unsupported action"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			tc.c.namespace, tc.c.pod, tc.c.name = "n", "p", "c"
			req := minute()
			req.Limit = tc.limit
			r := stop(t, &fakeRuntime{all: []*fakeContainer{&tc.c}}, req)
			assert.NilError(t, r.err)
			assert.DeepEqual(t, r.log, tc.log)
			assert.DeepEqual(t, r.warnings, tc.warns)
			assert.Assert(t, r.took <= tc.limit)
		})
	}
}

// TestSidecars checks that sidecars end after the main containers in reverse order, that they do not wait for a debug container, and that
// their hooks run immediately, as in the kubelet.
func TestSidecars(t *testing.T) {
	t.Parallel()
	f := &fakeRuntime{all: []*fakeContainer{
		{pod: "p", name: "first", grace: 30, termTakes: time.Second},
		{pod: "p", name: "second", grace: 30, termTakes: 2 * time.Second, preStop: execHook("flush"), hookTakes: time.Second},
		{pod: "p", name: "main", grace: 30, termTakes: 5 * time.Second},
		{pod: "p", name: "debug", grace: 30, termTakes: forever},
		{pod: "p", name: "init", ended: true},
	}}
	r := stop(t, f, minute(criclient.Pod{UID: "p", Containers: []string{"main"}, Sidecars: []string{"first", "second"}}))
	assert.NilError(t, r.err)
	assert.DeepEqual(t, lines(r.log, "second"), []string{
		"0s p/second hook flush", "1s p/second hook over", "5s p/second TERM, KILL after 25s", "7s p/second ended"})
	assert.DeepEqual(t, lines(r.log, "first"), []string{"7s p/first TERM, KILL after 23s", "8s p/first ended"})
	assert.DeepEqual(t, lines(r.log, "main"), []string{"0s p/main TERM, KILL after 30s", "5s p/main ended"})
}

// TestSidecarOfStuckContainer checks that a sidecar of a main container that does not end gets the minimum time.
func TestSidecarOfStuckContainer(t *testing.T) {
	t.Parallel()
	f := &fakeRuntime{all: []*fakeContainer{
		{pod: "p", name: "side", grace: 10, termTakes: forever}, {pod: "p", name: "main", grace: 10, termTakes: forever},
	}}
	r := stop(t, f, minute(criclient.Pod{UID: "p", Containers: []string{"main"}, Sidecars: []string{"side"}}))
	assert.NilError(t, r.err)
	assert.DeepEqual(t, lines(r.log, "side"), []string{"10s p/side TERM, KILL after 2s", "12s p/side ended"})
}

func lines(log []string, word string) (out []string) {
	for _, l := range log {
		if strings.Contains(l, "/"+word+" ") {
			out = append(out, l)
		}
	}
	return out
}

// TestCriticalPodsEndLast checks that ordinary pods are stopped concurrently and before critical ones, for which time is reserved.
func TestCriticalPodsEndLast(t *testing.T) {
	t.Parallel()
	pods := func() []*fakeContainer {
		return []*fakeContainer{
			{namespace: "kube-system", pod: "dns", name: "c", grace: 30, termTakes: time.Second},
			{namespace: "n", pod: "a", name: "c", grace: 30, termTakes: 6 * time.Second},
			{namespace: "n", pod: "b", name: "c", grace: 3600, termTakes: forever},
		}
	}
	r := stop(t, &fakeRuntime{all: pods()}, minute(criclient.Pod{UID: "dns", Critical: true}))
	assert.NilError(t, r.err)
	assert.DeepEqual(t, lines(r.log, "c")[2:], []string{
		"6s a/c ended", "49s b/c ended", "49s dns/c TERM, KILL after 10s", "50s dns/c ended"})

	t.Run("priorities are not known", func(t *testing.T) {
		t.Parallel()
		req := minute()
		req.Known = false
		r := stop(t, &fakeRuntime{all: pods()[:2]}, req)
		assert.NilError(t, r.err)
		assert.DeepEqual(t, r.log[len(r.log)-2:], []string{"6s dns/c TERM, KILL after 30s", "7s dns/c ended"})
	})
	t.Run("pod in kube-system without priority", func(t *testing.T) {
		t.Parallel()
		r := stop(t, &fakeRuntime{all: pods()[:2]}, minute())
		assert.NilError(t, r.err)
		assert.Equal(t, r.took, 6*time.Second)
	})
}

// TestPodThatIsBeingDeleted checks that the grace period of a deletion replaces that of the specification.
func TestPodThatIsBeingDeleted(t *testing.T) {
	t.Parallel()
	seconds := int64(3)
	r := stop(t, &fakeRuntime{all: []*fakeContainer{{pod: "p", name: "c", grace: 3600, termTakes: forever}}},
		minute(criclient.Pod{UID: "p", GraceSeconds: &seconds}))
	assert.NilError(t, r.err)
	assert.DeepEqual(t, r.log, []string{"0s p/c TERM, KILL after 3s", "3s p/c ended"})
}

// TestSilentRuntime checks that the stop ends soon if the runtime does not respond, from the start or later.
func TestSilentRuntime(t *testing.T) {
	t.Parallel()
	for after, took := range map[time.Duration]time.Duration{atOnce: 10 * time.Second, 3 * time.Second: 14 * time.Second} {
		r := stop(t, &fakeRuntime{frozen: after, all: []*fakeContainer{
			{pod: "p", name: "c", grace: 30, termTakes: forever, preStop: execHook("x"), hookTakes: forever},
		}}, minute())
		assert.ErrorIs(t, r.err, errUnresponsive)
		assert.Equal(t, r.took, took)
	}
}

// TestStopFails checks that a container that cannot be stopped is reported, and that a removed one is not.
func TestStopFails(t *testing.T) {
	t.Parallel()
	r := stop(t, &fakeRuntime{all: []*fakeContainer{
		{namespace: "n", pod: "a", name: "c", grace: 1, stopFails: errNotFound},
		{namespace: "n", pod: "b", name: "c", grace: 1, stopFails: status.Error(codes.Internal, "shim is gone")},
	}}, minute())
	assert.Error(t, r.err, "stop container c of pod n/b: rpc error: code = Internal desc = shim is gone")
}

// TestInterruptedPodsRunAgain checks that interrupted containers are removed, so that the kubelet starts them again, and that finished ones
// stay.
func TestInterruptedPodsRunAgain(t *testing.T) {
	t.Parallel()
	work := func(ended bool, endsAfter time.Duration) *fakeRuntime {
		return &fakeRuntime{all: []*fakeContainer{
			{pod: "job", name: "one", grace: 30, preStop: execHook("x"), hookTakes: 2 * time.Second, endsAfter: endsAfter},
			{pod: "job", name: "two", grace: 30, ended: ended},
			{pod: "job", name: "init", ended: true},
		}}
	}
	pod := func(policy string) criclient.Request {
		return minute(criclient.Pod{UID: "job", Containers: []string{"one", "two"}, RestartPolicy: policy})
	}
	for _, tc := range []struct {
		name, policy string
		f            *fakeRuntime
		want         []string
	}{
		{"always", "Always", work(false, 0), nil},
		{"never", "Never", work(false, 0), []string{"removed box-job"}},
		{"never, half done", "Never", work(true, 0), nil},
		{"never, done during its hook", "Never", work(false, time.Second), nil},
		{"on failure", "OnFailure", work(false, 0), []string{"removed job/one", "removed job/two"}},
		{"on failure, half done", "OnFailure", work(true, 0), []string{"removed job/one"}},
		{"on failure, done during its hook", "OnFailure", work(true, time.Second), nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			r := stop(t, tc.f, pod(tc.policy))
			assert.NilError(t, r.err)
			var removed []string
			for _, l := range r.log {
				if _, what, _ := strings.Cut(l, " "); strings.HasPrefix(what, "removed ") {
					removed = append(removed, what)
				}
			}
			assert.DeepEqual(t, removed, tc.want)
			assert.Equal(t, len(r.again) > 0, len(removed) > 0)
		})
	}
}

// served is a fake runtime that is served on a socket.
type served struct {
	cri.UnimplementedRuntimeServiceServer
	f *fakeRuntime
}

func (s served) ListPodSandbox(ctx context.Context, r *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error) {
	return s.f.ListPodSandbox(ctx, r)
}

func (s served) ListContainers(ctx context.Context, r *cri.ListContainersRequest) (*cri.ListContainersResponse, error) {
	return s.f.ListContainers(ctx, r)
}

func (s served) StopContainer(ctx context.Context, r *cri.StopContainerRequest) (*cri.StopContainerResponse, error) {
	return s.f.StopContainer(ctx, r)
}

func (s served) StopPodSandbox(ctx context.Context, r *cri.StopPodSandboxRequest) (*cri.StopPodSandboxResponse, error) {
	return s.f.StopPodSandbox(ctx, r)
}

func TestSocket(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", socket)
	assert.NilError(t, err)
	f := &fakeRuntime{start: time.Now(), all: []*fakeContainer{{namespace: "n", pod: "p", name: "c", grace: 7}}}
	server := grpc.NewServer()
	cri.RegisterRuntimeServiceServer(server, served{f: f})
	ended := make(chan error)
	go func() { ended <- server.Serve(ln) }()
	conn, err := Dial(socket)
	assert.NilError(t, err)
	assert.NilError(t, Stop(t.Context(), cri.NewRuntimeServiceClient(conn), minute(), func(criclient.Report) {}))
	assert.Equal(t, len(f.log), 2)
	assert.Assert(t, is.Contains(f.log[0], "p/c TERM, KILL after 7s"))
	assert.NilError(t, conn.Close())
	server.Stop()
	assert.NilError(t, <-ended)

	conn, err = Dial(socket)
	assert.NilError(t, err)
	err = Stop(t.Context(), cri.NewRuntimeServiceClient(conn), minute(), func(criclient.Report) {})
	assert.ErrorContains(t, err, "list pods: rpc error: code = Unavailable")
	assert.NilError(t, conn.Close())
}
