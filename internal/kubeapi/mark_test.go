package kubeapi

import (
	"encoding/json"
	"net/http"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
	corev1 "k8s.io/api/core/v1"
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

func TestRemoveNode(t *testing.T) {
	f := newFakeAPI(t, false)
	var deleted []string
	f.other = func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/api/v1/nodes/none":
			answer(w, 404, status(404, "NotFound", "no such node"))
		case r.Method == http.MethodDelete:
			deleted = append(deleted, r.URL.Path)
			answer(w, 200, object{})
		default:
			answer(w, 200, node(r.URL.Path[len("/api/v1/nodes/"):], "True"))
		}
	}
	c := f.client(t)
	for _, name := range []string{"unfit", "fit", "none"} {
		removed, err := c.RemoveNode(t.Context(), name, func(n *corev1.Node) bool { return n.Name == "unfit" })
		assert.NilError(t, err)
		assert.Equal(t, removed, name == "unfit")
	}
	assert.DeepEqual(t, deleted, []string{"/api/v1/nodes/unfit"})
}
