package main

import (
	"context"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// TestInstallBeside: a node that the unit runs is no obstacle, ready or not; one that was started by hand is.
func TestInstallBeside(t *testing.T) {
	t.Parallel()
	for active, ok := range map[string]bool{"active": true, "activating": true, "inactive": false, "failed": false, "": false} {
		a := &app{name: "default", userSystemctl: func(context.Context, ...string) (string, error) { return active + "\n", nil }}
		running := &fakeNode{cfg: config.Default(), pictures: []status.Status{{State: status.NodeStarting}}}
		err := a.notBeside(t.Context(), running)
		assert.Equal(t, err == nil, ok, "%q: %v", active, err)
		if !ok {
			assert.ErrorIs(t, err, errdefs.ErrPreflight)
		}
		assert.NilError(t, a.notBeside(t.Context(), &fakeNode{cfg: config.Default()}), "a node that does not run")
	}
}
