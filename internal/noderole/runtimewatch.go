package noderole

import (
	"context"
	"slices"
	"time"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/criclient"
	"github.com/rootlessnode/rootlessnode/internal/runtime"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

const (
	// runtimeTimeout limits one request to the container runtime. The runtime answers within milliseconds unless it hangs.
	runtimeTimeout = 5 * time.Second
	// runtimeSlow is the interval between two requests, and runtimeFast the one after a request that did not succeed.
	runtimeSlow = 20 * time.Second
	runtimeFast = 500 * time.Millisecond
	// runtimeHang is the time without a response after which the runtime is restarted. It is as long as for other components, whose
	// liveness probes make requests; that of the runtime only connects.
	runtimeHang = supervisor.DefaultLiveFailures * supervisor.DefaultLiveTimeout
)

// Reasons of a false ContainerRuntime condition. The others are those of the runtime.
const (
	reasonNoResponse   = "NoResponse"
	reasonRuntimeFault = "RuntimeNotReady"
)

// runtimeWatch requests the conditions of the container runtime (CRI Status), as the kubelet does.
type runtimeWatch struct {
	unit  string                      // of the runtime, for the hint
	wait  func(context.Context) error // waits until the runtime has started
	query func(context.Context) ([]criclient.Condition, error)
	// restart restarts the runtime. It is nil for a runtime that the user starts.
	restart func() error
}

func (n *nodeRole) runtimeWatch() runtimeWatch {
	w := runtimeWatch{
		unit: n.runtime.Unit(),
		wait: func(ctx context.Context) error { return n.group.WaitFor(ctx, n.runtime.Unit(), supervisor.Ready) },
		query: func(ctx context.Context) ([]criclient.Condition, error) {
			return criclient.ListConditions(ctx, n.binary(criclient.Program), n.environ(nil), runtime.Socket(n.cfg))
		},
	}
	if slices.ContainsFunc(n.components, func(c component.Component) bool { return c.Name == w.unit && c.Render != nil }) {
		w.restart = func() error { return n.group.Restart(w.unit) }
	}
	return w
}

// Run implements conditionWatch. The condition is pending until the runtime and the pod network are ready for the first time, and
// false after two failures in a row, because a request may fail while the runtime restarts.
func (w runtimeWatch) Run(ctx context.Context, report conditionReporter) error {
	report.set(status.Condition{Pending: true, Reason: "Starting", Message: "the container runtime has not started yet"})
	if err := w.wait(ctx); err != nil {
		return err
	}
	pending, failures := true, 0
	responded := time.Now()
	for {
		c := w.check(ctx)
		if ctx.Err() != nil {
			return nil
		}
		interval := runtimeSlow
		if c.OK {
			pending, failures = false, 0
		} else {
			failures++
			interval = runtimeFast
		}
		if c.Reason != reasonNoResponse {
			responded = time.Now()
		}
		if w.restart != nil && time.Since(responded) >= runtimeHang {
			responded = time.Now() // it has the same time again
			if err := w.restart(); err != nil {
				return err
			}
		}
		c.Pending = pending && !c.OK
		if failures != 1 || pending {
			report.set(c)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(interval):
		}
	}
}

// check makes one request.
func (w runtimeWatch) check(ctx context.Context) status.Condition {
	ctx, cancel := context.WithTimeoutCause(ctx, runtimeTimeout, errNoResponse)
	defer cancel()
	conditions, err := w.query(ctx)
	c := status.Condition{OK: err == nil}
	if err != nil {
		c.Reason, c.Message = reasonNoResponse, err.Error()
	}
	for _, f := range conditions {
		if !f.OK && c.OK {
			c = status.Condition{Reason: f.Reason, Message: joined(": ", f.Type+" is false", f.Message)}
			if c.Reason == "" {
				c.Reason = reasonRuntimeFault
			}
		}
	}
	if !c.OK {
		c.Steps = errdefs.Do(errdefs.ShowLogs, w.unit)
	}
	return c
}

// errNoResponse is the cause of a request that took longer than runtimeTimeout.
var errNoResponse = errdefs.Errorf("no response within %s", runtimeTimeout)
