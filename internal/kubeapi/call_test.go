package kubeapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

func TestNewRefusesBadKubeconfig(t *testing.T) {
	t.Parallel()
	_, err := New("", Options{})
	assert.ErrorContains(t, err, "the path is empty")
	_, err = New(filepath.Join(t.TempDir(), "none"), Options{})
	assert.Assert(t, errors.Is(err, os.ErrNotExist))
	bad := filepath.Join(t.TempDir(), "bad")
	assert.NilError(t, os.WriteFile(bad, []byte("kind: Config\nclusters: 7\n"), 0o600))
	_, err = New(bad, Options{})
	assert.ErrorContains(t, err, "load kubeconfig "+bad)
}

func TestWaitReady(t *testing.T) {
	f := newFakeAPI(t, true)
	var n atomic.Int32
	f.other = func(w http.ResponseWriter, r *http.Request) {
		assert.Check(t, is.Equal(r.URL.Path, "/readyz"))
		assert.Check(t, is.Equal(r.Header.Get("Authorization"), "Bearer secret"))
		assert.Check(t, is.Equal(r.Header.Get("User-Agent"), DefaultUserAgent))
		if n.Add(1) < 4 {
			http.Error(w, "[+]ping ok\n[-]etcd failed: reason withheld\n[-]poststarthook/rbac/bootstrap-roles failed: x\n", http.StatusInternalServerError)
		}
	}
	c := f.client(t)
	assert.ErrorContains(t, c.Ready(t.Context()), "500 Internal Server Error: failing checks: etcd, poststarthook/rbac/bootstrap-roles")
	assert.NilError(t, c.WaitReady(t.Context()))
	assert.Equal(t, n.Load(), int32(4))
}

func TestWaitReadyReportsLastReason(t *testing.T) {
	f := newFakeAPI(t, false)
	c := f.client(t)
	f.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := c.WaitReady(ctx)
	assert.ErrorContains(t, err, "connection refused")
	assert.Assert(t, errors.Is(err, errdefs.ErrTimeout))
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestWaitReadyBackoff(t *testing.T) {
	f := newFakeAPI(t, false)
	c, err := New(f.kubeconfig(t), Options{})
	assert.NilError(t, err)
	synctest.Test(t, func(t *testing.T) {
		began, asked := time.Now(), []time.Duration{}
		c.http = &http.Client{Transport: roundTrip(func(*http.Request) (*http.Response, error) {
			asked = append(asked, time.Since(began).Round(time.Millisecond))
			return nil, errors.New("connection refused")
		})}
		ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
		defer cancel()
		assert.ErrorContains(t, c.WaitReady(ctx), "connection refused")
		ms := time.Millisecond
		assert.DeepEqual(t, asked, []time.Duration{0, 10 * ms, 30 * ms, 70 * ms, 150 * ms, 250 * ms, 350 * ms})
	})
}

func TestPatchNodeLabels(t *testing.T) {
	f := newFakeAPI(t, false)
	var got string
	f.other = func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/api/v1/nodes/none" {
			answer(w, 404, status(404, "NotFound", `nodes "none" not found`))
			return
		}
		got = r.Method + " " + r.URL.Path + " " + r.Header.Get("Content-Type") + " " + bodyOf(r)
	}
	c := f.client(t)
	assert.NilError(t, c.PatchNodeLabels(t.Context(), "me", nil, nil))
	assert.Equal(t, got, "")
	assert.NilError(t, c.PatchNodeLabels(t.Context(), "me", map[string]string{"a": "1"}, []string{"b", "a"}))
	assert.Equal(t, got, `PATCH /api/v1/nodes/me application/merge-patch+json {"metadata":{"labels":{"a":"1","b":null}}}`)
	err := c.PatchNodeLabels(t.Context(), "none", nil, []string{"b"})
	assert.ErrorContains(t, err, `set labels of node none: patch /api/v1/nodes/none: nodes "none" not found`)
	assert.Assert(t, apierrors.IsNotFound(err))
}

func TestApply(t *testing.T) {
	f := newFakeAPI(t, false)
	var (
		mu    sync.Mutex
		paths []string
		early = 2
	)
	f.other = func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		paths = append(paths, r.Method+" "+r.URL.Path)
		switch {
		case r.URL.Path == "/apis/storage.k8s.io/v1":
			answer(w, 200, object{"resources": []object{
				{"name": "storageclasses/status", "kind": "StorageClass"},
				{"name": "storageclasses", "kind": "StorageClass", "namespaced": false}}})
		case strings.HasSuffix(r.URL.Path, "/serviceaccounts/sa") && early > 0:
			early--
			st := status(404, "NotFound", `namespaces "kube-system" not found`)
			st["details"] = object{"name": "kube-system", "kind": "namespaces"}
			answer(w, 404, st)
		case strings.HasSuffix(r.URL.Path, "/configmaps/bad"):
			answer(w, 422, status(422, "Invalid", "bad is invalid"))
		default:
			assert.Check(t, is.Equal(r.Header.Get("Content-Type"), "application/apply-patch+yaml"))
			assert.Check(t, is.Equal(r.URL.RawQuery, "fieldManager=rootlessnode&fieldValidation=Strict&force=true"))
			answer(w, 200, object{})
		}
	}
	_, err := f.client(t).Apply(t.Context(), []byte(`
# only a comment
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: sa, namespace: kube-system}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: bad}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: fast}
---
apiVersion: storage.k8s.io/v1
kind: Unheard
metadata: {name: of}
---
apiVersion: v1
kind: List
items:
- {apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: r}}
- {apiVersion: apps/v1, kind: Deployment, metadata: {name: d, namespace: kube-system}}
---
kind: Nameless
---
a: 1
a: 2
`))
	assert.ErrorContains(t, err, "apply ConfigMap bad: patch /api/v1/namespaces/default/configmaps/bad: bad is invalid")
	assert.ErrorContains(t, err, "apply Unheard of: the API server does not know this kind")
	assert.ErrorContains(t, err, "document 7: apiVersion, kind and metadata.name are required")
	assert.ErrorContains(t, err, "document 8:")
	sa := "PATCH /api/v1/namespaces/kube-system/serviceaccounts/sa"
	assert.DeepEqual(t, paths, []string{
		sa, sa, sa,
		"PATCH /api/v1/namespaces/default/configmaps/bad",
		"GET /apis/storage.k8s.io/v1",
		"PATCH /apis/storage.k8s.io/v1/storageclasses/fast",
		"PATCH /apis/rbac.authorization.k8s.io/v1/clusterroles/r",
		"PATCH /apis/apps/v1/namespaces/kube-system/deployments/d",
	})
}

func TestApplyReportsLastReason(t *testing.T) {
	f := newFakeAPI(t, false)
	asked := 0
	ctx, cancel := context.WithCancel(t.Context())
	f.other = func(w http.ResponseWriter, r *http.Request) {
		if asked++; asked == 5 {
			bodyOf(r) // the server detects a closed connection only after the body was read
			cancel()
			<-r.Context().Done()
			return
		}
		answer(w, 503, status(503, "ServiceUnavailable", "apiserver is shutting down"))
	}
	_, err := f.client(t).Apply(ctx, []byte("{apiVersion: v1, kind: Namespace, metadata: {name: x}}"))
	assert.ErrorContains(t, err, "apply Namespace x: patch /api/v1/namespaces/x: context canceled; last: ")
	assert.ErrorContains(t, err, "apiserver is shutting down")

	f.other = func(w http.ResponseWriter, _ *http.Request) {
		asked++
		answer(w, 500, status(500, "", ".spec.bogus: field not declared in schema"))
	}
	asked = 0
	_, err = f.client(t).Apply(t.Context(), []byte("{apiVersion: v1, kind: Namespace, metadata: {name: x}}"))
	assert.ErrorContains(t, err, "field not declared in schema")
	assert.Equal(t, asked, 1)
}

func FuzzParseManifest(f *testing.F) {
	f.Add([]byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: x}\n---\n"))
	f.Add([]byte("kind: List\nitems: [{}, 1]\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		docs, _ := parseManifest(raw)
		for _, d := range docs {
			assert.Assert(t, d.Kind != "" && d.APIVersion != "" && d.Metadata.Name != "" && json.Valid(d.json))
		}
	})
}

func TestEvent(t *testing.T) {
	f := newFakeAPI(t, false)
	var (
		calls   []string
		created object
		expired bool
	)
	f.other = func(w http.ResponseWriter, r *http.Request) {
		calls = append(calls, r.Method)
		switch {
		case r.Method == http.MethodPost:
			assert.Check(t, json.NewDecoder(r.Body).Decode(&created))
			assert.Check(t, is.Equal(r.URL.Path, "/api/v1/namespaces/ns/events"))
			answer(w, 201, object{})
		case expired:
			answer(w, 404, status(404, "NotFound", "no such event"))
		default:
			assert.Check(t, is.Contains(bodyOf(r), `"count":2`))
			assert.Check(t, is.Equal(r.URL.Path, "/api/v1/namespaces/ns/events/"+created["metadata"].(object)["name"].(string)))
			answer(w, 200, object{})
		}
	}
	c := f.client(t)
	now := time.Now()
	c.now = func() time.Time { return now }
	ev := Event{Object: ObjectRef{"Service", "ns", "web", "7"}, Type: EventWarning, Reason: "PortInUse", Message: "m", Host: "me"}
	record := func() { assert.NilError(t, c.Event(t.Context(), ev)) }

	record()
	record()
	assert.DeepEqual(t, calls, []string{"POST"})
	assert.Equal(t, created["involvedObject"].(object)["uid"], "7")
	assert.Equal(t, created["source"].(object)["component"], "rootlessnode")

	now = now.Add(eventQuiet)
	record()
	assert.DeepEqual(t, calls, []string{"POST", "PATCH"})

	expired = true
	now = now.Add(eventQuiet)
	record()
	assert.DeepEqual(t, calls, []string{"POST", "PATCH", "PATCH", "POST"})
}

func TestEventCacheIsBounded(t *testing.T) {
	t.Parallel()
	var m eventCache
	now := time.Now()
	for i := range 3 * maxEvents {
		m.record(Event{Message: ident(i)}, now.Add(time.Duration(i)))
	}
	assert.Equal(t, len(m.recorded), maxEvents)
	fresh, again := m.record(Event{Message: ident(3*maxEvents - 1)}, now)
	assert.Assert(t, fresh == nil && !again, "the latest are remembered")
}
