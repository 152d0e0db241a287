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

// TestInstallWhileRunning checks that install accepts a node that the unit runs, ready or not, but not one that was started
// manually.
func TestInstallWhileRunning(t *testing.T) {
	t.Parallel()
	for active, ok := range map[string]bool{"active": true, "activating": true, "inactive": false, "failed": false, "": false} {
		a := &app{name: "default", env: func(string) string { return "" }}
		a.userSystemctl = func(context.Context, ...string) (string, error) { return active + "\n", nil }
		running := &fakeNode{cfg: config.Default(), statuses: []status.Status{{State: status.NodeStarting}}}
		err := checkNotRunning(t.Context(), a, running)
		assert.Equal(t, err == nil, ok, "%q: %v", active, err)
		if !ok {
			assert.ErrorIs(t, err, errdefs.ErrPreflight)
		}
		assert.NilError(t, checkNotRunning(t.Context(), a, &fakeNode{cfg: config.Default()}), "a stopped node")
	}
}

// TestInstallWorker checks that install rejects a worker that has not joined, and --on-demand for a worker.
func TestInstallWorker(t *testing.T) {
	t.Parallel()
	a := &app{name: "w", env: func(string) string { return "" }}
	worker := &fakeNode{cfg: config.Default(), dir: t.TempDir()}
	assert.NilError(t, checkJoined(a, worker), "not a worker")
	worker.cfg.Join.Server = "https://192.0.2.1:6443"
	err := checkJoined(a, worker)
	assert.ErrorIs(t, err, errdefs.ErrPreflight)
	assert.ErrorContains(t, err, "has not joined https://192.0.2.1:6443 yet")
	assert.Assert(t, cmp.Contains(errdefs.ReportOf(err).Hints[0], "rootlessnode --name w up --join https://192.0.2.1:6443 --token-file FILE"))
	record := worker.Data().JoinRecord()
	assert.NilError(t, os.MkdirAll(filepath.Dir(record), 0o700))
	assert.NilError(t, os.WriteFile(record, []byte("{}"), 0o600))
	assert.NilError(t, checkJoined(a, worker))
	_, err = onDemandAddress(a, worker.cfg)
	assert.ErrorIs(t, err, errdefs.ErrConfig)
	assert.ErrorContains(t, err, "a worker has no API server port")
}
