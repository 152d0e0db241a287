package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

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

// TestInstallWorker: a unit has no token, and a worker no port of an API server.
func TestInstallWorker(t *testing.T) {
	t.Parallel()
	a := &app{name: "w", env: func(string) string { return "" }}
	worker := &fakeNode{cfg: config.Default(), dir: t.TempDir()}
	assert.NilError(t, a.hasJoined(worker), "not a worker")
	worker.cfg.Join.Server = "https://192.0.2.1:6443"
	err := a.hasJoined(worker)
	assert.ErrorIs(t, err, errdefs.ErrPreflight)
	assert.ErrorContains(t, err, "has not joined https://192.0.2.1:6443 yet")
	assert.Assert(t, cmp.Contains(errdefs.ReportOf(err).Hints[0], "rootlessnode --name w up --join https://192.0.2.1:6443 --token-file FILE"))
	record := worker.Data().JoinRecord()
	assert.NilError(t, os.MkdirAll(filepath.Dir(record), 0o700))
	assert.NilError(t, os.WriteFile(record, []byte("{}"), 0o600))
	assert.NilError(t, a.hasJoined(worker))
	_, err = onDemandAddress(worker.cfg)
	assert.ErrorIs(t, err, errdefs.ErrConfig)
	assert.ErrorContains(t, err, "a worker has no API server's port")
}
