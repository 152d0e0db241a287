package kubeapi

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestEnsureNodeWithoutPermission checks that an existing Node object is enough where nodes may not create one.
func TestEnsureNodeWithoutPermission(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t, false)
	f.other = func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPost:
			answer(w, 403, status(403, "Forbidden", "a node cannot create its Node object"))
		case r.URL.Path == "/api/v1/nodes/there":
			answer(w, 200, node("there", "True"))
		default:
			answer(w, 404, status(404, "NotFound", "none"))
		}
	}
	c := f.client(t)
	created, err := c.EnsureNode(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "there"}})
	assert.NilError(t, err)
	assert.Assert(t, !created)
	_, err = c.EnsureNode(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "removed"}})
	assert.ErrorContains(t, err, "create node removed: ")
	assert.ErrorContains(t, err, "a node cannot create its Node object")
}

func TestRemove(t *testing.T) {
	t.Parallel()
	const manifest = `apiVersion: v1
kind: Secret
metadata: {name: a, namespace: kube-system}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: gone, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: sign}
`
	f := newFakeAPI(t, false)
	const secret, sign = "/api/v1/namespaces/kube-system/secrets/a", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/sign"
	left, refused := map[string]bool{secret: true, sign: true}, secret
	var calls []string
	f.other = func(w http.ResponseWriter, r *http.Request) {
		calls = append(calls, r.Method+" "+r.URL.Path)
		switch {
		case !left[r.URL.Path]:
			answer(w, 404, status(404, "NotFound", "none"))
		case r.Method == http.MethodDelete && r.URL.Path == refused:
			answer(w, 403, status(403, "Forbidden", "not you"))
		case r.Method == http.MethodDelete:
			delete(left, r.URL.Path)
			fallthrough
		default:
			answer(w, 200, object{})
		}
	}
	c := f.client(t)
	_, err := c.Remove(t.Context(), []byte(manifest))
	assert.ErrorContains(t, err, "delete Secret kube-system/a: ")
	assert.Assert(t, left[sign], "the marker object stays")
	refused = ""
	removed, err := c.Remove(t.Context(), []byte(manifest))
	assert.NilError(t, err)
	assert.Assert(t, removed && len(left) == 0, "%v", left)
	calls = nil
	removed, err = c.Remove(t.Context(), []byte(manifest))
	assert.NilError(t, err)
	assert.Assert(t, !removed)
	assert.DeepEqual(t, calls, []string{"GET " + sign})
}

func TestMayList(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t, false)
	f.other = func(w http.ResponseWriter, r *http.Request) {
		var review struct {
			Spec struct {
				ResourceAttributes struct{ Verb, Group, Resource string }
			}
		}
		assert.Check(t, is.Equal(r.Method+" "+r.URL.Path, "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews"))
		assert.Check(t, json.NewDecoder(r.Body).Decode(&review))
		a := review.Spec.ResourceAttributes
		answer(w, 201, object{"status": object{"allowed": a.Verb == "list" || a.Group+"/"+a.Resource == "g/things"}})
	}
	for r, want := range map[Resource]bool{{"g", "things"}: true, {"", "things"}: false} {
		got, err := f.client(t).MayList(t.Context(), r)
		assert.NilError(t, err)
		assert.Equal(t, got, want, r.String())
	}
}

func TestNodeLease(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t, false)
	const leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
	renewed := ""
	var made object
	f.other = func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPost && r.URL.Path == leases:
			assert.Check(t, json.NewDecoder(r.Body).Decode(&made))
			renewed = made["spec"].(map[string]any)["renewTime"].(string)
			answer(w, 201, made)
		case r.URL.Path != leases+"/b":
			t.Errorf("%s %s", r.Method, r.URL.Path)
		case renewed == "":
			answer(w, 404, status(404, "NotFound", "none"))
		case r.Method == http.MethodPatch:
			var body struct{ Spec struct{ RenewTime string } }
			assert.Check(t, json.NewDecoder(r.Body).Decode(&body))
			renewed = body.Spec.RenewTime
			fallthrough
		default:
			answer(w, 200, object{"spec": object{"renewTime": renewed}})
		}
	}
	c := f.client(t)
	at, err := c.NodeLeaseRenewed(t.Context(), "b")
	assert.NilError(t, err)
	assert.Assert(t, at.IsZero())
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b", UID: "u"}}
	for _, want := range []time.Time{time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC), time.Date(2026, 1, 2, 3, 4, 6, 0, time.UTC)} {
		assert.NilError(t, c.RenewNodeLease(t.Context(), node, want))
		at, err = c.NodeLeaseRenewed(t.Context(), "b")
		assert.NilError(t, err)
		assert.Assert(t, at.Equal(want), "%v", at)
	}
	owner := made["metadata"].(map[string]any)["ownerReferences"].([]any)[0].(map[string]any)
	assert.Equal(t, owner["uid"], "u", "deleted together with the Node object")
}

func TestUsedBootstrapToken(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t, false)
	notes := map[string]any{"rootlessnode.dev/node-name": "b", "rootlessnode.dev/single-use": "true"}
	f.other = func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/api/v1/namespaces/kube-system/secrets/bootstrap-token-abc123" {
			answer(w, 404, status(404, "NotFound", "none"))
			return
		}
		if r.Method == http.MethodPatch {
			var body struct {
				Metadata struct{ Annotations map[string]any }
			}
			assert.Check(t, json.NewDecoder(r.Body).Decode(&body))
			for k, v := range body.Metadata.Annotations {
				notes[k] = v
			}
		}
		answer(w, 200, object{"metadata": object{"annotations": notes}, "data": object{"token-id": []byte("abc123")}})
	}
	c := f.client(t)
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	assert.NilError(t, c.UseBootstrapToken(t.Context(), "abc123", "b", at))
	got, err := c.BootstrapToken(t.Context(), "abc123")
	assert.NilError(t, err)
	assert.DeepEqual(t, *got, BootstrapToken{ID: "abc123", NodeName: "b", SingleUse: true, UsedBy: "b", UsedAt: at})
	got, err = c.BootstrapToken(t.Context(), "def456")
	assert.NilError(t, err)
	assert.Assert(t, got == nil)
}

// TestAnswersAreBounded checks the size limits for servers that are not authenticated and for those that are.
func TestAnswersAreBounded(t *testing.T) {
	t.Parallel()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		block := []byte(strings.Repeat(" ", 1<<20)) // white space before the JSON text
		for range 64 {
			if _, err := w.Write(block); err != nil {
				return
			}
		}
	}))
	defer server.Close()
	c, err := NewForCluster(Cluster{Server: server.URL, Insecure: true}, Options{})
	assert.NilError(t, err)
	defer c.Close()
	_, err = c.ConfigMap(t.Context(), "kube-public", "cluster-info")
	assert.ErrorContains(t, err, "the response is larger than 4194304 bytes")

	b := bound(strings.NewReader("0123456789"), 4)
	p := make([]byte, 8)
	for _, want := range []int{4, 4, 2} {
		n, err := b.Read(p)
		assert.NilError(t, err)
		assert.Equal(t, n, want)
		b.reset()
	}
	assert.Equal(t, newFakeAPI(t, false).client(t).maxAnswer, int64(maxAnswer))
}
