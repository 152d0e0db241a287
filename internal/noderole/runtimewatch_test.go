package noderole

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/criclient"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// TestRuntimeWatch checks a start with a network that is not ready yet, a single failed request, a runtime that hangs, and its recovery.
func TestRuntimeWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		network := criclient.Condition{Type: "NetworkReady", Reason: "NetworkPluginNotReady", Message: "cni plugin not initialized"}
		var fault error
		hang := false
		hub := status.NewHub(status.Status{}, status.Options{})
		runConditions(t, hub, map[string]conditionWatch{status.ConditionContainerRuntime: runtimeWatch{
			unit: "containerd", wait: func(context.Context) error { return nil },
			query: func(ctx context.Context) ([]criclient.Condition, error) {
				if hang {
					<-ctx.Done()
					return nil, context.Cause(ctx)
				}
				return []criclient.Condition{{Type: "RuntimeReady", OK: true}, network}, fault
			},
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
		network.OK = true
		assert.Assert(t, state(2*runtimeFast).OK)
		fault = errors.New("connection refused")
		time.Sleep(runtimeSlow - runtimeFast)
		assert.Assert(t, state(time.Millisecond).OK, "one failed request is reported")
		fault = nil
		assert.Assert(t, state(2*runtimeFast).OK)
		hang = true
		c = state(runtimeSlow + 2*runtimeTimeout + 2*runtimeFast)
		assert.Assert(t, !c.OK && !c.Pending)
		assert.Equal(t, c.Reason+" "+c.Message+" "+c.Hint, "NoResponse no response within 5s show the logs of the node: containerd")
		hang = false
		assert.Assert(t, state(runtimeTimeout+2*runtimeFast).OK)
	})
}
