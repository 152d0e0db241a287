package cristop

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/rootlessnode/rootlessnode/internal/criclient"
)

// Labels and annotations in which the kubelet stores the data that it needs to stop a container (pkg/kubelet/kuberuntime/labels.go and
// k8s.io/kubelet/pkg/types).
const (
	labelPodName       = "io.kubernetes.pod.name"
	labelPodNamespace  = "io.kubernetes.pod.namespace"
	labelPodUID        = "io.kubernetes.pod.uid"
	labelContainerName = "io.kubernetes.container.name"

	annotationGrace         = "io.kubernetes.pod.terminationGracePeriod"
	annotationDeletionGrace = "io.kubernetes.pod.deletionGracePeriod"
	annotationPreStop       = "io.kubernetes.container.preStopHandler"
	annotationPorts         = "io.kubernetes.container.ports"
)

const (
	restartNever     = string(corev1.RestartPolicyNever)
	restartOnFailure = string(corev1.RestartPolicyOnFailure)
)

// systemNamespace is the namespace of system pods. They are treated as critical if priorities are unknown.
const systemNamespace = "kube-system"

// pod is a pod in the runtime that the kubelet has started.
type pod struct {
	uid           string
	name          string // namespace/name
	critical      bool
	grace         time.Duration
	main          []string
	sidecars      []string
	restartPolicy string
	sandboxes     []string // ids of the ready sandboxes
	running       []*container
	someEnded     bool // a main container had ended before the stop
}

// container is a running container.
type container struct {
	pod      *pod
	id, name string
	sandbox  string
	preStop  *corev1.LifecycleHandler
	ports    []corev1.ContainerPort
	// interrupted is set if the container was running when it was stopped, and stopped if the runtime reports that it has ended.
	interrupted, stopped bool
}

// mayRunAgain reports whether the kubelet could regard an interrupted container of the pod as finished.
func (p *pod) mayRunAgain() bool {
	return p.restartPolicy == restartNever || p.restartPolicy == restartOnFailure
}

// list returns the pods that have a sandbox or a running container.
func (s *stopper) list(ctx context.Context) ([]*pod, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.timeout, errUnresponsive)
	defer cancel()
	sandboxes, err := s.rt.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return nil, listError(ctx, "pods", err)
	}
	containers, err := s.rt.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		return nil, listError(ctx, "containers", err)
	}
	byUID := map[string]*pod{}
	var pods []*pod
	of := func(labels map[string]string) *pod {
		uid := labels[labelPodUID]
		if uid == "" {
			return nil // not started by the kubelet
		}
		if byUID[uid] == nil {
			byUID[uid] = s.pod(uid, labels)
			pods = append(pods, byUID[uid])
		}
		return byUID[uid]
	}
	for _, b := range sandboxes.GetItems() {
		if b.GetState() == cri.PodSandboxState_SANDBOX_READY {
			if p := of(b.GetLabels()); p != nil {
				p.sandboxes = append(p.sandboxes, b.GetId())
			}
		}
	}
	for _, c := range containers.GetContainers() {
		running := c.GetState() == cri.ContainerState_CONTAINER_RUNNING
		if p := byUID[c.GetLabels()[labelPodUID]]; !running && p != nil && slices.Contains(p.sandboxes, c.GetPodSandboxId()) {
			p.someEnded = p.someEnded || slices.Contains(p.main, c.GetLabels()[labelContainerName])
		}
		if !running {
			continue
		}
		if p := of(c.GetLabels()); p != nil {
			p.running = append(p.running, s.container(p, c))
		}
	}
	return pods, nil
}

func listError(ctx context.Context, objects string, err error) error {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return fmt.Errorf("list %s: %w", objects, err)
}

// pod returns the pod with the data of its labels and of the request.
func (s *stopper) pod(uid string, labels map[string]string) *pod {
	p := &pod{
		uid: uid, name: labels[labelPodNamespace] + "/" + labels[labelPodName],
		critical: !s.req.Known && labels[labelPodNamespace] == systemNamespace, grace: -1,
	}
	i := slices.IndexFunc(s.req.Pods, func(k criclient.Pod) bool { return k.UID == uid })
	if i < 0 {
		return p
	}
	k := s.req.Pods[i]
	p.critical, p.main, p.sidecars, p.restartPolicy = k.Critical, k.Containers, k.Sidecars, k.RestartPolicy
	if k.GraceSeconds != nil {
		p.grace = time.Duration(*k.GraceSeconds) * time.Second
	}
	return p
}

// container returns the container with the data of its annotations. It reports a malformed annotation as a warning and ignores it.
func (s *stopper) container(p *pod, c *cri.Container) *container {
	a := c.GetAnnotations()
	out := &container{pod: p, id: c.GetId(), name: c.GetLabels()[labelContainerName], sandbox: c.GetPodSandboxId()}
	decode := func(key string, into any) bool {
		text, there := a[key]
		if !there {
			return false
		}
		if err := json.Unmarshal([]byte(text), into); err != nil {
			s.warn("read annotation %s of container %s of pod %s: %v", key, out.name, p.name, err)
			return false
		}
		return true
	}
	var handler corev1.LifecycleHandler
	if decode(annotationPreStop, &handler) {
		out.preStop = &handler
	}
	decode(annotationPorts, &out.ports)
	if p.grace < 0 {
		p.grace = grace(a)
	}
	return out
}

// grace returns the grace period in a container's annotations, or minimumGrace if there is none, as in the kubelet.
func grace(annotations map[string]string) time.Duration {
	for _, key := range []string{annotationDeletionGrace, annotationGrace} {
		if seconds, err := strconv.ParseInt(annotations[key], 10, 32); err == nil && seconds >= 0 {
			return time.Duration(seconds) * time.Second
		}
	}
	return minimumGrace
}

// split returns the ordinary and the critical pods.
func split(pods []*pod) (ordinary, critical []*pod) {
	for _, p := range pods {
		if p.critical {
			critical = append(critical, p)
		} else {
			ordinary = append(ordinary, p)
		}
	}
	return ordinary, critical
}

// turns is the order in which the containers of a pod are stopped: a sidecar is stopped after the main containers and after the sidecars
// that come later in the specification.
type turns struct {
	ended map[*container]chan struct{}
	after map[*container][]*container
}

func newTurns(p *pod) *turns {
	t := &turns{ended: map[*container]chan struct{}{}, after: map[*container][]*container{}}
	for _, c := range p.running {
		t.ended[c] = make(chan struct{})
		at := slices.Index(p.sidecars, c.name)
		if at < 0 {
			continue
		}
		for _, other := range p.running {
			if slices.Contains(p.main, other.name) || slices.Index(p.sidecars, other.name) > at {
				t.after[c] = append(t.after[c], other)
			}
		}
	}
	return t
}

// await blocks until the containers that must be stopped before c have ended, or ctx ends. If it has to wait, it calls waiting first.
func (t *turns) await(ctx context.Context, c *container, waiting func()) {
	for i, other := range t.after[c] {
		if i == 0 {
			waiting()
		}
		select {
		case <-t.ended[other]:
		case <-ctx.Done():
			return
		}
	}
}

func isNotFound(err error) bool { return status.Code(err) == codes.NotFound }
