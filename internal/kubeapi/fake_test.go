package kubeapi

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"gotest.tools/v3/assert"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type object = map[string]any

type change struct {
	version int
	kind    string
	obj     object
}

// collections are the paths of the collection of a fakeAPI.
var collections = []string{
	servicesPath, nodesPath, podsPath, slicesPath, csrsPath, namespacesPath + "/kube-system/configmaps", namespacesPath + "/kube-system/pods",
}

// fakeAPI is an API server with one collection: lists with pages, watches with history, and their failures.
type fakeAPI struct {
	*httptest.Server
	mu      sync.Mutex
	cond    *sync.Cond
	version int
	oldest  int // versions before it are gone
	objects map[string]object
	history []change
	cut     int // raised to break every watch
	double  bool
	lists   int
	watches int
	closed  bool
	// accept is called with each request for the collection. It may be nil.
	accept func(*http.Request)
	// other answers requests outside the collection.
	other func(w http.ResponseWriter, r *http.Request)
}

func newFakeAPI(t *testing.T, tls bool) *fakeAPI {
	t.Helper()
	f := &fakeAPI{objects: map[string]object{}, version: 10}
	f.cond = sync.NewCond(&f.mu)
	if tls {
		f.Server = httptest.NewUnstartedServer(f)
		f.EnableHTTP2 = true
		f.StartTLS()
	} else {
		f.Server = httptest.NewServer(f)
	}
	t.Cleanup(func() {
		f.mu.Lock()
		f.closed = true
		f.mu.Unlock()
		f.cond.Broadcast()
		f.CloseClientConnections()
		f.Close()
	})
	return f
}

// client returns a client for f with short delays.
func (f *fakeAPI) client(t *testing.T) *Client {
	t.Helper()
	c, err := New(f.kubeconfig(t), Options{})
	assert.NilError(t, err)
	t.Cleanup(c.Close)
	c.followBackoff = doubling(time.Millisecond, 4*time.Millisecond)
	c.readyBackoff, c.applyBackoff = c.followBackoff, c.followBackoff
	return c
}

func (f *fakeAPI) kubeconfig(t *testing.T) string {
	t.Helper()
	cluster := object{"server": f.URL}
	if cert := f.Certificate(); cert != nil {
		cluster["certificate-authority-data"] = pemOf(cert)
	}
	raw, err := json.Marshal(object{
		"apiVersion": "v1", "kind": "Config", "current-context": "x",
		"clusters": []object{{"name": "x", "cluster": cluster}},
		"users":    []object{{"name": "x", "user": object{"token": "secret"}}},
		"contexts": []object{{"name": "x", "context": object{"cluster": "x", "user": "x"}}},
	})
	assert.NilError(t, err)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	assert.NilError(t, os.WriteFile(path, raw, 0o600))
	return path
}

func keyOf(o object) string {
	m := o["metadata"].(object)
	ns, _ := m["namespace"].(string)
	return ns + "/" + m["name"].(string)
}

// put stores o and sends it to the watches. It returns the new version.
func (f *fakeAPI) put(o object) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	kind := "MODIFIED"
	if _, ok := f.objects[keyOf(o)]; !ok {
		kind = "ADDED"
	}
	f.record(kind, o)
	f.objects[keyOf(o)] = o
	return f.version
}

func (f *fakeAPI) remove(o object) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.objects, keyOf(o))
	f.record("DELETED", o)
}

func (f *fakeAPI) record(kind string, o object) {
	f.version++
	o["metadata"].(object)["resourceVersion"] = strconv.Itoa(f.version)
	raw, _ := json.Marshal(o)
	var c object
	_ = json.Unmarshal(raw, &c)
	f.history = append(f.history, change{f.version, kind, c})
	if f.double {
		f.history = append(f.history, change{f.version, kind, c})
	}
	f.cond.Broadcast()
}

// drop breaks all watches; with compact it also drops the versions up to now.
func (f *fakeAPI) drop(compact bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cut++
	if compact {
		f.version++
		f.oldest, f.history = f.version, nil
	}
	f.cond.Broadcast()
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Method == http.MethodGet && slices.Contains(collections, r.URL.Path):
		if f.accept != nil {
			f.accept(r)
		}
		if r.URL.Query().Get("watch") != "" {
			f.serveWatch(w, r)
		} else {
			f.serveList(w, r)
		}
	case f.other != nil:
		f.other(w, r)
	default:
		http.NotFound(w, r)
	}
}

func (f *fakeAPI) selected(r *http.Request, o object) bool {
	field, label := fields.Set{}, labels.Set{}
	for _, part := range []string{"metadata", "spec"} {
		m, _ := o[part].(object)
		for k, v := range m {
			if text, ok := v.(string); ok {
				field[part+"."+k] = text
			}
		}
	}
	marks, _ := o["metadata"].(object)["labels"].(object)
	for k, v := range marks {
		label[k] = v.(string)
	}
	byField, err := fields.ParseSelector(r.URL.Query().Get("fieldSelector"))
	byLabel, lerr := labels.Parse(r.URL.Query().Get("labelSelector"))
	if err != nil || lerr != nil {
		panic(errors.Join(err, lerr))
	}
	return byField.Matches(field) && byLabel.Matches(label)
}

func (f *fakeAPI) serveList(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lists++
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	var keys []string
	for k, o := range f.objects {
		if f.selected(r, o) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	meta := object{"resourceVersion": strconv.Itoa(f.version)}
	to := len(keys)
	if limit > 0 && from+limit < to {
		to = from + limit
		meta["continue"] = strconv.Itoa(to)
	}
	items := []object{}
	for _, k := range keys[from:to] {
		items = append(items, f.objects[k])
	}
	answer(w, http.StatusOK, object{"kind": "List", "metadata": meta, "items": items})
}

func (f *fakeAPI) serveWatch(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.watches++
	at, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	if at < f.oldest {
		answer(w, http.StatusOK, object{"type": "ERROR", "object": status(http.StatusGone, "Expired", "too old")})
		return
	}
	cut := f.cut
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-r.Context().Done():
			f.cond.Broadcast()
		case <-stop:
		}
	}()
	w.WriteHeader(http.StatusOK)
	done, told := 0, map[string]bool{}
	for i, c := range f.history {
		if c.version <= at {
			done, told[keyOf(c.obj)] = i+1, f.selected(r, c.obj)
		}
	}
	for r.Context().Err() == nil && !f.closed {
		w.(http.Flusher).Flush()
		if f.cut != cut {
			panic(http.ErrAbortHandler)
		}
		for ; done < len(f.history); done++ {
			c := f.history[done]
			now, was := f.selected(r, c.obj), told[keyOf(c.obj)]
			told[keyOf(c.obj)] = now
			switch {
			case now:
				_ = json.NewEncoder(w).Encode(object{"type": c.kind, "object": c.obj})
			case was:
				_ = json.NewEncoder(w).Encode(object{"type": "DELETED", "object": c.obj})
			}
		}
		w.(http.Flusher).Flush()
		f.cond.Wait()
	}
}

func status(code int, reason, message string) object {
	return object{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": message}
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}

func bodyOf(r *http.Request) string {
	raw, _ := io.ReadAll(r.Body)
	return string(raw)
}

func service(name string, uid string, nodePort int) object {
	return object{
		"metadata": object{
			"namespace": "ns", "name": name, "uid": uid, "creationTimestamp": "2026-01-02T03:04:05Z",
			"annotations":   object{"rootlessnode.dev/bind": "0.0.0.0", "other": "x", AnnotationSourceRanges: "192.0.2.0/24"},
			"managedFields": []object{{"manager": strings.Repeat("x", 100)}},
		},
		"spec": object{
			"type": "NodePort", "ipFamilies": []string{"IPv4"}, "loadBalancerSourceRanges": []string{"198.51.100.0/24"},
			"ports": []object{{"name": "web", "protocol": "TCP", "port": 80, "nodePort": nodePort}},
		},
	}
}

func wantService(name, uid string, nodePort int) Service {
	return Service{
		Namespace: "ns", Name: name, UID: uid, Type: "NodePort", IPFamilies: []string{"IPv4"},
		Ports:       []ServicePort{{Name: "web", Protocol: "TCP", Port: 80, NodePort: nodePort}},
		Annotations: map[string]string{"rootlessnode.dev/bind": "0.0.0.0", AnnotationSourceRanges: "192.0.2.0/24"},
		Created:     time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), LoadBalancerSourceRanges: []string{"198.51.100.0/24"},
	}
}

func node(name string, ready string) object {
	return object{
		"metadata": object{"name": name, "uid": "u-" + name, "managedFields": []object{{"manager": "kubelet"}}},
		"spec":     object{"podCIDR": "10.42.0.0/24"},
		"status":   object{"conditions": []object{{"type": "Ready", "status": ready, "reason": "KubeletNotReady", "message": "cni plugin not initialized"}}},
	}
}

func ident(i int) string { return fmt.Sprintf("s%04d", i) }
