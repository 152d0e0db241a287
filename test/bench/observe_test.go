package main

import (
	"encoding/json"
	"testing"
	"time"

	"gotest.tools/v3/assert"
)

// TestReadyIsOfThisRun checks that a Ready condition from before the start is ignored.
func TestReadyIsOfThisRun(t *testing.T) {
	t.Parallel()
	o := &observer{since: time.Date(2026, 11, 29, 18, 0, 10, 900, time.UTC)}
	for name, c := range map[string]struct {
		condition string
		want      bool
	}{
		"true":            {`{"type":"Ready","status":"True","lastHeartbeatTime":"2026-11-29T18:00:14Z"}`, true},
		"the same second": {`{"type":"Ready","status":"True","lastHeartbeatTime":"2026-11-29T18:00:10Z"}`, true},
		"of an old run":   {`{"type":"Ready","status":"True","lastHeartbeatTime":"2026-11-29T17:59:00Z"}`, false},
		"false":           {`{"type":"Ready","status":"False","lastHeartbeatTime":"2026-11-29T18:00:14Z"}`, false},
		"another":         {`{"type":"DiskPressure","status":"True","lastHeartbeatTime":"2026-11-29T18:00:14Z"}`, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var e event
			text := `{"type":"MODIFIED","object":{"spec":{"podCIDR":"10.42.0.0/24"},"status":{"conditions":[` + c.condition + `]}}}`
			assert.NilError(t, json.Unmarshal([]byte(text), &e))
			assert.Equal(t, e.Object.Spec.PodCIDR, "10.42.0.0/24")
			assert.Equal(t, o.ready(e), c.want)
		})
	}
}
