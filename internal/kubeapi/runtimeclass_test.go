package kubeapi

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"gotest.tools/v3/assert"
	nodev1 "k8s.io/api/node/v1"
)

// TestRuntimeClasses checks that existing classes are not changed, and that only labelled ones are deleted.
func TestRuntimeClasses(t *testing.T) {
	t.Parallel()
	var calls []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls = append(calls, r.Method+" "+r.URL.RequestURI())
		w.Header().Set("Content-Type", "application/json")
		switch r.Method {
		case http.MethodPost:
			body, err := io.ReadAll(r.Body)
			assert.Check(t, err)
			var class nodev1.RuntimeClass
			assert.Check(t, json.Unmarshal(body, &class))
			assert.Check(t, class.Handler == class.Name && class.Labels["a"] == "b")
			if class.Name == "mine" {
				w.WriteHeader(http.StatusConflict)
				_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"AlreadyExists","code":409}`)
			}
		case http.MethodGet:
			_, _ = io.WriteString(w, `{"items":[{"metadata":{"name":"crun"}},{"metadata":{"name":"youki"}}]}`)
		}
	}))
	t.Cleanup(server.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	assert.NilError(t, os.WriteFile(kubeconfig, []byte("{clusters: [{name: c, cluster: {server: '"+server.URL+
		"'}}], contexts: [{name: c, context: {cluster: c}}], current-context: c}"), 0o600))
	c, err := New(kubeconfig, Options{})
	assert.NilError(t, err)
	t.Cleanup(c.Close)
	for _, name := range []string{"mine", "crun"} {
		assert.NilError(t, c.EnsureRuntimeClass(t.Context(), name, map[string]string{"a": "b"}))
	}
	assert.NilError(t, c.RemoveRuntimeClasses(t.Context(), "a=b", func(name string) bool { return name == "youki" }))
	assert.DeepEqual(t, calls, []string{
		"POST /apis/node.k8s.io/v1/runtimeclasses", "POST /apis/node.k8s.io/v1/runtimeclasses",
		"GET /apis/node.k8s.io/v1/runtimeclasses?labelSelector=a%3Db", "DELETE /apis/node.k8s.io/v1/runtimeclasses/youki",
	})
}
