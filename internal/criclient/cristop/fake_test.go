package cristop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"gotest.tools/v3/assert"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/rootlessnode/rootlessnode/internal/criclient"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// atOnce is the minimum value for fakeRuntime.frozen.
const atOnce = -1

const forever = time.Duration(1<<62 - 1)

// fakeContainer is a container of the fake runtime. Its pod has the UID and the name of pod, in namespace, and one sandbox.
type fakeContainer struct {
	namespace, pod, name string
	grace                int
	preStop              *corev1.LifecycleHandler
	hookTakes            time.Duration
	hookCode             int32
	termTakes            time.Duration // from the stop signal to its end
	ended                bool          // before the stop
	endsAfter            time.Duration // without a stop, if above 0
	stopFails            error
}

// fakeRuntime is a CRI runtime with the clock of the test. It embeds the interface for the calls that are never made.
type fakeRuntime struct {
	cri.RuntimeServiceClient
	all      []*fakeContainer
	frozen   time.Duration // since the start; it does not respond afterwards; 0 for never
	podIP    string
	hostPods bool

	start time.Time
	mu    sync.Mutex
	log   []string
}

func (f *fakeRuntime) note(format string, args ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.log = append(f.log, fmt.Sprintf("%v ", time.Since(f.start))+fmt.Sprintf(format, args...))
}

// respond blocks a call to a frozen runtime until its context ends.
func (f *fakeRuntime) respond(ctx context.Context) error {
	if f.frozen != 0 && time.Since(f.start) >= f.frozen {
		<-ctx.Done()
		return ctx.Err()
	}
	return ctx.Err()
}

func (f *fakeRuntime) Version(ctx context.Context, _ *cri.VersionRequest, _ ...grpc.CallOption) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{}, f.respond(ctx)
}

func labels(c *fakeContainer) map[string]string {
	return map[string]string{labelPodUID: c.pod, labelPodName: c.pod, labelPodNamespace: c.namespace, labelContainerName: c.name}
}

func (f *fakeRuntime) ListPodSandbox(ctx context.Context, _ *cri.ListPodSandboxRequest, _ ...grpc.CallOption) (*cri.ListPodSandboxResponse, error) {
	r := &cri.ListPodSandboxResponse{}
	seen := map[string]bool{}
	for _, c := range f.all {
		if !seen[c.pod] {
			r.Items = append(r.Items, &cri.PodSandbox{Id: "box-" + c.pod, Labels: labels(c)})
		}
		seen[c.pod] = true
	}
	return r, f.respond(ctx)
}

func (f *fakeRuntime) ListContainers(ctx context.Context, _ *cri.ListContainersRequest, _ ...grpc.CallOption) (*cri.ListContainersResponse, error) {
	r := &cri.ListContainersResponse{}
	for _, c := range f.all {
		a := map[string]string{annotationGrace: fmt.Sprint(c.grace)}
		if c.preStop != nil {
			b, _ := json.Marshal(c.preStop)
			a[annotationPreStop] = string(b)
		}
		state := cri.ContainerState_CONTAINER_RUNNING
		if c.ended {
			state = cri.ContainerState_CONTAINER_EXITED
		}
		r.Containers = append(r.Containers, &cri.Container{
			Id: c.pod + "/" + c.name, PodSandboxId: "box-" + c.pod, Labels: labels(c), Annotations: a, State: state,
		})
	}
	// Containers that the kubelet has not started.
	r.Containers = append(r.Containers, &cri.Container{Id: "foreign", State: cri.ContainerState_CONTAINER_RUNNING})
	return r, f.respond(ctx)
}

func (f *fakeRuntime) find(id string) *fakeContainer {
	for _, c := range f.all {
		if c.pod+"/"+c.name == id {
			return c
		}
	}
	return nil
}

func (f *fakeRuntime) gone(c *fakeContainer) bool {
	return c.ended || c.endsAfter > 0 && time.Since(f.start) >= c.endsAfter
}

func (f *fakeRuntime) ContainerStatus(ctx context.Context, r *cri.ContainerStatusRequest, _ ...grpc.CallOption) (*cri.ContainerStatusResponse, error) {
	state := cri.ContainerState_CONTAINER_RUNNING
	if f.gone(f.find(r.ContainerId)) {
		state = cri.ContainerState_CONTAINER_EXITED
	}
	return &cri.ContainerStatusResponse{Status: &cri.ContainerStatus{State: state}}, f.respond(ctx)
}

func (f *fakeRuntime) ExecSync(ctx context.Context, r *cri.ExecSyncRequest, _ ...grpc.CallOption) (*cri.ExecSyncResponse, error) {
	if err := f.respond(ctx); err != nil {
		return nil, err
	}
	c := f.find(r.ContainerId)
	f.note("%s hook %s", r.ContainerId, strings.Join(r.Cmd, " "))
	if err := sleep(ctx, c.hookTakes); err != nil {
		return nil, err
	}
	f.note("%s hook over", r.ContainerId)
	return &cri.ExecSyncResponse{ExitCode: c.hookCode}, nil
}

func (f *fakeRuntime) StopContainer(ctx context.Context, r *cri.StopContainerRequest, _ ...grpc.CallOption) (*cri.StopContainerResponse, error) {
	if err := f.respond(ctx); err != nil {
		return nil, err
	}
	c := f.find(r.ContainerId)
	if c == nil {
		return nil, errors.New("unexpected stop of " + r.ContainerId)
	}
	if c.stopFails != nil {
		return nil, c.stopFails
	}
	f.note("%s TERM, KILL after %ds", r.ContainerId, r.Timeout)
	if err := sleep(ctx, min(c.termTakes, time.Duration(r.Timeout)*time.Second)); err != nil {
		return nil, err
	}
	f.note("%s ended", r.ContainerId)
	return &cri.StopContainerResponse{}, nil
}

func (f *fakeRuntime) StopPodSandbox(ctx context.Context, r *cri.StopPodSandboxRequest, _ ...grpc.CallOption) (*cri.StopPodSandboxResponse, error) {
	return &cri.StopPodSandboxResponse{}, f.respond(ctx)
}

func (f *fakeRuntime) RemovePodSandbox(ctx context.Context, r *cri.RemovePodSandboxRequest, _ ...grpc.CallOption) (*cri.RemovePodSandboxResponse, error) {
	f.note("removed %s", r.PodSandboxId)
	return &cri.RemovePodSandboxResponse{}, f.respond(ctx)
}

func (f *fakeRuntime) RemoveContainer(ctx context.Context, r *cri.RemoveContainerRequest, _ ...grpc.CallOption) (*cri.RemoveContainerResponse, error) {
	f.note("removed %s", r.ContainerId)
	return &cri.RemoveContainerResponse{}, f.respond(ctx)
}

func (f *fakeRuntime) PodSandboxStatus(ctx context.Context, r *cri.PodSandboxStatusRequest, _ ...grpc.CallOption) (*cri.PodSandboxStatusResponse, error) {
	s := &cri.PodSandboxStatus{Network: &cri.PodSandboxNetworkStatus{Ip: f.podIP}}
	if f.hostPods {
		s.Linux = &cri.LinuxPodSandboxStatus{Namespaces: &cri.Namespace{Options: &cri.NamespaceOption{Network: cri.NamespaceMode_NODE}}}
	}
	return &cri.PodSandboxStatusResponse{Status: s}, f.respond(ctx)
}

var errNotFound = status.Error(codes.NotFound, "no such container")

// result is the result of a stop.
type result struct {
	log      []string
	warnings []string
	waiting  [][]string
	again    []string // container names
	took     time.Duration
	err      error
}

// stop runs Stop against the containers with the clock of the test.
func stop(t *testing.T, f *fakeRuntime, req criclient.Request) (r result) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f.start = time.Now()
		r.err = Stop(t.Context(), f, req, func(p criclient.Report) {
			if p.Warning != "" {
				r.warnings = append(r.warnings, p.Warning)
			}
			if p.Interrupted != nil {
				r.again = append(r.again, p.Interrupted.Containers...)
			}
			if p.Changed {
				r.waiting = append(r.waiting, p.Waiting)
			}
		})
		r.took = time.Since(f.start)
		r.log = f.log
	})
	if r.err == nil {
		assert.Equal(t, len(r.waiting[len(r.waiting)-1]), 0)
	}
	return r
}

func execHook(words ...string) *corev1.LifecycleHandler {
	return &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: words}}
}
