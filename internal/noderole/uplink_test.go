package noderole

import (
	"path/filepath"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// The condition follows the file of the parent.
func TestUplinkWatch(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "network-fault.json")
	hub := status.NewHub(status.Status{}, status.Options{})
	runConditions(t, hub, map[string]conditionWatch{status.ConditionUplink: uplinkWatch{path}})
	wait := func(ok bool) *status.Condition {
		t.Helper()
		for {
			changed := hub.Changed()
			s := hub.Snapshot()
			if c := s.Condition(status.ConditionUplink); c != nil && c.OK == ok {
				return c
			}
			<-changed
		}
	}
	wait(true)
	const message = "the network process (slirp4netns, pid 7) ended: signal: killed"
	assert.NilError(t, layout.WriteJSON(path, layout.NetworkFault{Message: message}))
	assert.Equal(t, wait(false).Message, message)
	assert.NilError(t, layout.WriteJSON(path, layout.NetworkFault{}))
	wait(true)
}
