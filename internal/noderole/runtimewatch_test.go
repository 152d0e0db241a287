package noderole

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/criclient"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// fakeRuntime answers with its fields, or not at all.
type fakeRuntime struct {
	mu            sync.Mutex
	hang, network bool
	fault         error
}

func (f *fakeRuntime) set(hang, network bool, fault error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hang, f.network, f.fault = hang, network, fault
}

func (f *fakeRuntime) query(ctx context.Context) ([]criclient.Condition, error) {
	f.mu.Lock()
	hang, network, fault := f.hang, f.network, f.fault
	f.mu.Unlock()
	if hang {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	return []criclient.Condition{
		{Type: "RuntimeReady", OK: true},
		{Type: "NetworkReady", OK: network, Reason: "NetworkPluginNotReady", Message: "cni plugin not initialized"},
	}, fault
}

// TestRuntimeWatch checks a start with a network that is not ready yet, a single failed request, a runtime that hangs, and its recovery.
func TestRuntimeWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var fake fakeRuntime
		var restarts atomic.Int32
		hub := status.NewHub(status.Status{}, status.Options{})
		runConditions(t, hub, map[string]conditionWatch{status.ConditionContainerRuntime: runtimeWatch{
			unit: "containerd", wait: func(context.Context) error { return nil },
			query:   fake.query,
			restart: func() error { restarts.Add(1); return nil },
		}})
		state := func(after time.Duration) status.Condition {
			time.Sleep(after)
			synctest.Wait()
			s := hub.Snapshot()
			return *s.Condition(status.ConditionContainerRuntime)
		}
		c := state(time.Minute)
		assert.Assert(t, c.Pending)
		assert.Equal(t, c.Reason+" "+c.Message, "NetworkPluginNotReady NetworkReady is false: cni plugin not initialized")
		fake.set(false, true, nil)
		assert.Assert(t, state(2*runtimeFast).OK)
		fake.set(false, true, errors.New("connection refused"))
		time.Sleep(runtimeSlow - runtimeFast)
		assert.Assert(t, state(time.Millisecond).OK, "one failed request is reported")
		fake.set(false, true, nil)
		assert.Assert(t, state(2*runtimeFast).OK)
		fake.set(true, true, nil)
		c = state(runtimeSlow + 2*runtimeTimeout + 2*runtimeFast)
		assert.Assert(t, !c.OK && !c.Pending)
		assert.Equal(t, c.Reason+" "+c.Message+" "+c.Hint, "NoResponse no response within 5s show the logs of the node: containerd")
		fake.set(false, true, nil)
		assert.Assert(t, state(runtimeTimeout+2*runtimeFast).OK)
		assert.Equal(t, restarts.Load(), int32(0))
		fake.set(true, true, nil)
		state(runtimeSlow + runtimeHang + runtimeTimeout)
		assert.Equal(t, restarts.Load(), int32(1))
		fake.set(false, false, nil)
		assert.Assert(t, !state(runtimeHang+runtimeSlow).OK)
		assert.Equal(t, restarts.Load(), int32(1), "a runtime that responds is restarted")
	})
}
