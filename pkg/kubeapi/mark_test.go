package kubeapi

import (
	"encoding/json"
	"net/http"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
)

func TestMarkNodeNotReady(t *testing.T) {
	f := newFakeAPI(t, false)
	var patched []string
	f.other = func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPatch:
			patched = append(patched, r.URL.Path)
			assert.Check(t, is.Equal(r.Header.Get("Content-Type"), mimeStrategicPatch))
			var got struct {
				Status struct {
					Conditions []struct{ Type, Status, Reason string }
				}
			}
			assert.Check(t, json.NewDecoder(r.Body).Decode(&got))
			assert.Check(t, is.Equal(got.Status.Conditions[0].Type+" "+got.Status.Conditions[0].Status, "Ready Unknown"))
			answer(w, 200, object{})
		case r.URL.Path == "/api/v1/nodes/up":
			answer(w, 200, node("up", "True"))
		case r.URL.Path == "/api/v1/nodes/down":
			answer(w, 200, node("down", "False"))
		default:
			answer(w, 404, status(404, "NotFound", "no such node"))
		}
	}
	c := f.client(t)
	for _, name := range []string{"up", "down", "none"} {
		assert.NilError(t, c.MarkNodeNotReady(t.Context(), name, "NodeStarting", "m"))
	}
	assert.DeepEqual(t, patched, []string{"/api/v1/nodes/up/status"})
}
