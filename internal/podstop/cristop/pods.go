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

	"github.com/rootlessnode/rootlessnode/internal/podstop"
)

// Labels and annotations by which the kubelet restores what it must know of a container to stop it
// (pkg/kubelet/kuberuntime/labels.go, and k8s.io/kubelet/pkg/types).
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

// systemNamespace has the cluster's own pods: the critical ones where priorities are not known.
const systemNamespace = "kube-system"

// pod is a pod of the kubelet, as the runtime has it.
type pod struct {
	uid           string
	name          string // namespace/name
	critical      bool
	grace         time.Duration
	main          []string
	sidecars      []string
	restartPolicy string
	sandboxes     []string // ids of those that are ready
	running       []*container
	someEnded     bool // a main container has ended before
}

// container is one that runs.
type container struct {
	pod      *pod
	id, name string
	sandbox  string
	preStop  *corev1.LifecycleHandler
	ports    []corev1.ContainerPort
	// interrupted: it had not ended by itself when it was stopped. stopped: the runtime says that it has ended.
	interrupted, stopped bool
}

// mayRunAgain reports whether the kubelet could take an interrupted container of the pod for one that has done its work.
func (p *pod) mayRunAgain() bool {
	return p.restartPolicy == restartNever || p.restartPolicy == restartOnFailure
}

// list returns the pods that have a sandbox or a running container.
func (s *stopper) list(ctx context.Context) ([]*pod, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, s.answer, errSilent)
	defer cancel()
	sandboxes, err := s.rt.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return nil, listFault(ctx, "pods", err)
	}
	containers, err := s.rt.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		return nil, listFault(ctx, "containers", err)
	}
	byUID := map[string]*pod{}
	var pods []*pod
	of := func(labels map[string]string) *pod {
		uid := labels[labelPodUID]
		if uid == "" {
			return nil // not the kubelet's
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

func listFault(ctx context.Context, what string, err error) error {
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return fmt.Errorf("list %s: %w", what, err)
}

// pod returns what is known of a pod from its labels and from the request.
func (s *stopper) pod(uid string, labels map[string]string) *pod {
	p := &pod{
		uid: uid, name: labels[labelPodNamespace] + "/" + labels[labelPodName],
		critical: !s.req.Known && labels[labelPodNamespace] == systemNamespace, grace: -1,
	}
	i := slices.IndexFunc(s.req.Pods, func(k podstop.Pod) bool { return k.UID == uid })
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

// container returns what the annotations of a container say. A fault in them is reported, and the container is stopped without
// what it concerns.
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

// grace is the grace period in a container's annotations; without any it is the minimum, as in the kubelet.
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

// turns is the order in which the containers of a pod are stopped: a sidecar after the main containers and after the
// sidecars that come later in the specification.
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

// await blocks until it is the turn of c or ctx ends. It calls waiting before it blocks.
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
