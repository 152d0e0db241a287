// Package cristop stops pods through the CRI. It is the implementation of the helper program of package criclient. Only that program
// imports it, because linking gRPC makes each start of a process slower and larger.
//
// The order and the times are those of the kubelet (pkg/kubelet/kuberuntime), within the time limit for all pods.
package cristop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/rootlessnode/rootlessnode/internal/criclient"
)

const (
	// responseLimit is the timeout of a call that does not wait for a container. It is long, so that pods are stopped in order on a
	// busy machine too. It is at most a third of the time limit for all pods.
	responseLimit = 10 * time.Second
	// pingEvery is the interval of the calls that check whether the runtime responds.
	pingEvery = 2 * time.Second
	// minimumGrace is the minimum time between the stop signal and KILL, as in the kubelet.
	minimumGrace = 2 * time.Second
	// roundTrip is the part of the limit that is reserved for the runtime, because a killed container does not end immediately.
	roundTrip = time.Second
	// maxMessage is the maximum size of a response in bytes, as in the kubelet.
	maxMessage = 16 << 20
)

// errUnresponsive means that the runtime does not respond. The caller has to stop the pods without it.
var errUnresponsive = errors.New("the container runtime does not respond")

// Dial returns a connection to the runtime at a socket. It connects at the first call.
func Dial(socket string) (*grpc.ClientConn, error) {
	return grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithNoProxy(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
}

// stopper stops all pods.
type stopper struct {
	rt      cri.RuntimeServiceClient
	req     criclient.Request
	report  func(criclient.Report)
	timeout time.Duration // of calls that do not wait for a container; see responseLimit

	mu      sync.Mutex
	waiting map[string]string // container id -> text
	faults  []error
}

// Stop stops the containers of all pods and then their sandboxes. It returns nil if all containers have stopped. It passes its progress
// to report.
func Stop(ctx context.Context, rt cri.RuntimeServiceClient, req criclient.Request, report func(criclient.Report)) error {
	s := &stopper{rt: rt, req: req, report: report, timeout: min(responseLimit, req.Limit/3), waiting: map[string]string{}}
	end := time.Now().Add(req.Limit)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	pods, err := s.list(ctx)
	if err != nil {
		return err
	}
	var helpers sync.WaitGroup
	defer helpers.Wait()
	defer cancel(nil)
	helpers.Go(func() { s.ping(ctx, cancel) })

	ordinary, critical := split(pods)
	ordinaryEnd := end
	if len(critical) > 0 {
		ordinaryEnd = end.Add(-req.CriticalReserve)
	}
	var sandboxes sync.WaitGroup
	s.stopAll(ctx, ordinary, ordinaryEnd, &sandboxes)
	s.stopAll(ctx, critical, end, &sandboxes)
	sandboxes.Wait()
	if errors.Is(context.Cause(ctx), errUnresponsive) {
		return errUnresponsive
	}
	return errors.Join(s.faults...)
}

// ping cancels the stop with errUnresponsive when the runtime does not respond. A call that waits for a container would not detect that.
func (s *stopper) ping(ctx context.Context, cancel context.CancelCauseFunc) {
	tick := time.NewTicker(pingEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		call, done := context.WithTimeout(ctx, s.timeout)
		_, err := s.rt.Version(call, &cri.VersionRequest{})
		done()
		if err != nil && ctx.Err() == nil {
			cancel(errUnresponsive)
			return
		}
	}
}

// stopAll stops pods concurrently and returns when all their containers have ended. It stops their sandboxes in goroutines of sandboxes,
// because other pods need not wait for that.
func (s *stopper) stopAll(ctx context.Context, pods []*pod, end time.Time, sandboxes *sync.WaitGroup) {
	var all sync.WaitGroup
	for _, p := range pods {
		all.Go(func() {
			if s.stopPod(ctx, p, end) {
				sandboxes.Go(func() { s.finish(ctx, p) })
			}
		})
	}
	all.Wait()
}

// stopPod stops the containers of a pod, and reports whether all have ended.
func (s *stopper) stopPod(ctx context.Context, p *pod, end time.Time) bool {
	turns := newTurns(p)
	var all sync.WaitGroup
	for _, c := range p.running {
		s.wait(c, "")
	}
	for _, c := range p.running {
		all.Go(func() {
			defer close(turns.ended[c])
			defer s.done(c)
			if err := s.stopContainer(ctx, c, turns, end); err != nil {
				s.fault(c, err)
				return
			}
			c.stopped = true
		})
	}
	all.Wait()
	return !slices.ContainsFunc(p.running, func(c *container) bool { return !c.stopped })
}

// stopContainer runs the preStop hook, waits for the containers that must end before, and stops the container with the rest of the grace
// period.
func (s *stopper) stopContainer(ctx context.Context, c *container, turns *turns, end time.Time) error {
	graceEnd := earlier(time.Now().Add(c.pod.grace), end.Add(-roundTrip))
	// The steps before the stop signal must leave at least minimumGrace.
	before, cancel := context.WithDeadline(ctx, earlier(graceEnd, end.Add(-roundTrip-minimumGrace)))
	defer cancel()
	hook, endHook := context.WithCancel(ctx)
	defer endHook()
	if c.preStop != nil && c.pod.grace > 0 {
		s.wait(c, "preStop hook")
		s.runHook(before, hook, c)
	}
	if turns.await(before, c, func() { s.wait(c, "waiting for the main containers") }); ctx.Err() != nil {
		return context.Cause(ctx)
	}
	c.interrupted = !c.pod.mayRunAgain() || s.isRunning(ctx, c)
	seconds := max(time.Until(graceEnd), minimumGrace)
	s.wait(c, "stop signal sent, up to "+seconds.Round(time.Second).String())
	call, cancelCall := context.WithTimeout(ctx, seconds+roundTrip+s.timeout)
	defer cancelCall()
	_, err := s.rt.StopContainer(call, &cri.StopContainerRequest{ContainerId: c.id, Timeout: int64((seconds + time.Second - 1) / time.Second)})
	if isNotFound(err) {
		return nil
	}
	return err
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// isRunning reports whether the container is still running. If the runtime does not respond, it returns true.
func (s *stopper) isRunning(ctx context.Context, c *container) bool {
	call, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()
	r, err := s.rt.ContainerStatus(call, &cri.ContainerStatusRequest{ContainerId: c.id})
	return err != nil || r.GetStatus().GetState() == cri.ContainerState_CONTAINER_RUNNING
}

// finish stops the sandboxes of a pod whose containers have ended, which releases its address. It also removes interrupted containers that
// the kubelet would otherwise regard as finished.
func (s *stopper) finish(ctx context.Context, p *pod) {
	call, cancel := context.WithTimeout(ctx, 2*s.timeout)
	defer cancel()
	for _, id := range p.sandboxes {
		if _, err := s.rt.StopPodSandbox(call, &cri.StopPodSandboxRequest{PodSandboxId: id}); err != nil && !isNotFound(err) && ctx.Err() == nil {
			s.warn("stop the sandbox of pod %s: %v", p.name, err)
			return
		}
	}
	if err := s.removeInterrupted(call, p); err != nil && ctx.Err() == nil {
		s.warn("prepare pod %s to run again: %v", p.name, err)
	}
}

// removeInterrupted removes containers and sandboxes from the runtime, so that the kubelet does not report an interrupted pod as finished. A
// pod with restart policy Never runs again only if the runtime has no sandbox of it. A pod with OnFailure runs again only if none of its
// containers has succeeded; a container that exits with 0 on its stop signal counts as succeeded.
func (s *stopper) removeInterrupted(ctx context.Context, p *pod) error {
	if !p.mayRunAgain() {
		return nil
	}
	var interrupted []string
	var errs []error
	for _, c := range p.running {
		if !c.interrupted {
			continue
		}
		interrupted = append(interrupted, c.name)
		if p.restartPolicy == restartOnFailure {
			_, err := s.rt.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: c.id})
			errs = append(errs, err)
		}
	}
	if p.restartPolicy == restartNever {
		if len(interrupted) < len(p.running) || p.someEnded {
			return nil
		}
		for _, id := range p.sandboxes {
			_, err := s.rt.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id})
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil || len(interrupted) == 0 {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report(criclient.Report{Interrupted: &criclient.Interrupted{UID: p.uid, Containers: interrupted}})
	return nil
}

func (s *stopper) fault(c *container, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, fmt.Errorf("stop container %s of pod %s: %w", c.name, c.pod.name, err))
}

func (s *stopper) warn(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.report(criclient.Report{Warning: fmt.Sprintf(format, args...)})
}

// wait reports that a container has not stopped yet. step is the current step; if it is empty, the container is reported with the next
// change.
func (s *stopper) wait(c *container, step string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	name := c.pod.name
	if len(c.pod.running) > 1 {
		name += "/" + c.name
	}
	if step == "" {
		s.waiting[c.id] = name
		return
	}
	s.waiting[c.id] = fmt.Sprintf("%s (%s)", name, step)
	s.reportWaiting()
}

func (s *stopper) done(c *container) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting, c.id)
	s.reportWaiting()
}

func (s *stopper) reportWaiting() {
	list := make([]string, 0, len(s.waiting))
	for _, text := range s.waiting {
		list = append(list, text)
	}
	slices.SortFunc(list, strings.Compare)
	s.report(criclient.Report{Changed: true, Waiting: list})
}
