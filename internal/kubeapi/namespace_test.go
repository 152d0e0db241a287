package kubeapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"testing"

	"gotest.tools/v3/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// TestCreateAndRemoveNamespace creates a namespace and, once there is a service account, a pod in it, and removes the namespace.
func TestCreateAndRemoveNamespace(t *testing.T) {
	f := newFakeAPI(t, false)
	posts, asked := 0, 0
	f.other = func(w http.ResponseWriter, r *http.Request) {
		switch r.Method + " " + r.URL.Path {
		case "POST /api/v1/namespaces":
			var ns corev1.Namespace
			assert.Check(t, json.NewDecoder(r.Body).Decode(&ns))
			ns.Name = ns.GenerateName + "x"
			answer(w, 201, ns)
		case "POST /api/v1/namespaces/try-x/pods":
			if posts++; posts == 1 {
				answer(w, 403, status(403, "Forbidden", "error looking up service account try-x/default"))
				return
			}
			answer(w, 201, object{})
		case "GET /api/v1/namespaces/try-x/pods/a":
			answer(w, 200, object{"metadata": object{"name": "a"}})
		case "DELETE /api/v1/namespaces/try-x":
			answer(w, 200, object{})
		case "GET /api/v1/namespaces/try-x":
			if asked++; asked > 1 {
				answer(w, 404, status(404, "NotFound", "gone"))
				return
			}
			answer(w, 200, object{})
		default:
			answer(w, 403, status(403, "Forbidden", "not yours"))
		}
	}
	f.put(node("n", "True"))
	c := f.client(t)
	names, err := c.NodeNames(t.Context())
	assert.NilError(t, err)
	assert.DeepEqual(t, names, []string{"n"})
	ns, err := c.CreateNamespace(t.Context(), "try-")
	assert.NilError(t, err)
	assert.Equal(t, ns, "try-x")
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "a"}}
	assert.NilError(t, c.CreatePod(t.Context(), pod))
	assert.Equal(t, posts, 2)
	got, err := c.ReadPod(t.Context(), ns, "a")
	assert.NilError(t, err)
	assert.Equal(t, got.Name, "a")
	assert.NilError(t, c.RemoveNamespace(t.Context(), ns))

	pod.Namespace = "other"
	assert.ErrorContains(t, c.CreatePod(t.Context(), pod), "create pod a: post /api/v1/namespaces/other/pods: not yours")
}

func TestRemoveNamespaceTimeout(t *testing.T) {
	f := newFakeAPI(t, false)
	ctx, cancel := context.WithDeadlineCause(t.Context(), metav1.Now().Add(-1), errors.New("too late"))
	defer cancel()
	err := f.client(t).RemoveNamespace(ctx, "x")
	assert.ErrorIs(t, err, errdefs.ErrTimeout)
	assert.ErrorContains(t, err, "wait until namespace x is gone")
}
