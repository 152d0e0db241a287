package kubeapi

import (
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
)

// store is an API server that keeps the objects that are applied, by path. It serves the kinds in kinds, by the prefix of their paths.
type store struct {
	mu      sync.Mutex
	objects map[string]object
	kinds   map[string][]wireResource
	// requests are the changes in their order, as "METHOD PATH".
	changes []string
	refuse  string // the end of paths that are refused
}

func newStore(t *testing.T) (*store, *Client) {
	s := &store{objects: map[string]object{}, kinds: map[string][]wireResource{
		"/api/v1":                       {{"configmaps", "ConfigMap", true}, {"namespaces", "Namespace", false}, {"services", "Service", true}},
		"/apis/apiextensions.k8s.io/v1": {{"customresourcedefinitions", "CustomResourceDefinition", false}},
	}}
	f := &fakeAPI{Server: httptest.NewServer(http.HandlerFunc(s.serve))}
	t.Cleanup(f.Close)
	return s, f.client(t)
}

func (s *store) serve(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	path := r.URL.Path
	if kinds, ok := s.kinds[path]; ok {
		writeJSON(w, object{"resources": kinds})
		return
	}
	if s.kinds[path+"/v1"] != nil {
		writeJSON(w, object{"versions": []object{{"groupVersion": strings.TrimPrefix(path, "/apis/") + "/v1"}}})
		return
	}
	if r.Method != http.MethodGet {
		s.changes = append(s.changes, r.Method+" "+path)
	}
	switch {
	case s.refuse != "" && strings.HasSuffix(path, s.refuse):
		refuse(w, http.StatusUnprocessableEntity)
	case r.Method == http.MethodPatch:
		raw, _ := io.ReadAll(r.Body)
		var o object
		_ = json.Unmarshal(raw, &o)
		if parts := strings.Split(path, "/namespaces/"); len(parts) == 2 && strings.Contains(parts[1], "/") {
			o["metadata"].(object)["namespace"], _, _ = strings.Cut(parts[1], "/")
		}
		s.objects[path] = o
		if o["kind"] == "CustomResourceDefinition" {
			s.kinds["/apis/example.org/v1"] = []wireResource{{"things", "Thing", true}}
		}
		writeJSON(w, o)
	case r.Method == http.MethodDelete && s.objects[path] != nil:
		delete(s.objects, path)
	case s.objects[path] != nil:
		writeJSON(w, s.objects[path])
	case r.Method == http.MethodGet && r.URL.Query().Has("labelSelector"):
		writeJSON(w, object{"items": s.list(path, r.URL.Query().Get("labelSelector"))})
	default:
		refuse(w, http.StatusNotFound)
	}
}

// list returns the objects of a collection, in all namespaces, that have a label, or a label with a value.
func (s *store) list(path, selector string) []object {
	prefix, resource := path[:strings.LastIndexByte(path, '/')], path[strings.LastIndexByte(path, '/')+1:]
	if before, _, ok := strings.Cut(prefix, "/namespaces/"); ok {
		prefix = before
	}
	kind := ""
	for _, k := range s.kinds[prefix] {
		if k.Name == resource {
			kind = k.Kind
		}
	}
	name, value, exact := strings.Cut(selector, "=")
	found := []object{}
	for _, at := range slices.Sorted(maps.Keys(s.objects)) {
		labels, _ := s.objects[at]["metadata"].(object)["labels"].(object)
		got, ok := labels[name]
		if strings.HasPrefix(at, prefix+"/") && s.objects[at]["kind"] == kind && ok && (!exact || got == value) {
			found = append(found, s.objects[at])
		}
	}
	return found
}

func (s *store) take() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	changes := s.changes
	s.changes = nil
	return changes
}

func writeJSON(w http.ResponseWriter, v any) { _ = json.NewEncoder(w).Encode(v) }

func refuse(w http.ResponseWriter, code int) {
	w.WriteHeader(code)
	writeJSON(w, object{"kind": "Status", "code": code, "message": http.StatusText(code), "reason": map[int]string{http.StatusNotFound: "NotFound"}[code]})
}

const setManifest = `# a comment
apiVersion: example.org/v1
kind: Thing
metadata: {name: one, namespace: shop}
spec: {large: 9007199254740993}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.org}
spec: {group: example.org, names: {kind: Thing, plural: things}, versions: [{name: v1, served: true}, {name: v2, served: false}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, labels: {a: b}}
`

func TestApplySet(t *testing.T) {
	t.Parallel()
	server, c := newStore(t)
	s := &Set{Name: "shop", Source: "/addons/shop.yaml"}
	assert.NilError(t, s.AddFile("/addons/shop.yaml", []byte(setManifest)))
	assert.DeepEqual(t, s.Objects(), map[ObjectID]string{
		{"Thing", "shop", "one"}: "/addons/shop.yaml:2", {"Namespace", "", "shop"}: "/addons/shop.yaml:7",
		{"CustomResourceDefinition", "", "things.example.org"}: "/addons/shop.yaml:11", {"ConfigMap", "", "settings"}: "/addons/shop.yaml:16",
	})
	applied, err := c.ApplySet(t.Context(), s, true)
	assert.NilError(t, err)
	assert.Equal(t, len(applied), 4)
	const (
		parent     = "/api/v1/namespaces/kube-system/configmaps/rootlessnode-addon-shop"
		thing      = "/apis/example.org/v1/namespaces/shop/things/one"
		namespace  = "/api/v1/namespaces/shop"
		definition = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/things.example.org"
		settings   = "/api/v1/namespaces/default/configmaps/settings"
	)
	assert.DeepEqual(t, server.take(), []string{"PATCH " + parent, "PATCH " + namespace, "PATCH " + definition, "PATCH " + thing, "PATCH " + settings, "PATCH " + parent})
	annotations := server.objects[parent]["metadata"].(object)["annotations"].(object)
	assert.Equal(t, annotations["applyset.kubernetes.io/contains-group-kinds"], "ConfigMap,CustomResourceDefinition.apiextensions.k8s.io,Namespace,Thing.example.org")
	assert.Equal(t, annotations["applyset.kubernetes.io/additional-namespaces"], "shop")
	id := server.objects[parent]["metadata"].(object)["labels"].(object)["applyset.kubernetes.io/id"]
	assert.Equal(t, id, "applyset-gC9od5mHuEhFW9CFwfHXn-K_RfdJQ9Wh-wll9nGvmqU-v1", "KEP-3659: of rootlessnode-addon-shop.kube-system.ConfigMap.")
	assert.DeepEqual(t, server.objects[settings]["metadata"].(object)["labels"], object{"a": "b", "applyset.kubernetes.io/part-of": id})

	stored, err := c.StoredSets(t.Context())
	assert.NilError(t, err)
	assert.DeepEqual(t, stored, []StoredSet{{"shop", "/addons/shop.yaml"}})

	// Without the first and the last object, they are deleted, but not if another object cannot be applied.
	less := &Set{Name: "shop", Source: s.Source}
	documents := strings.Split(setManifest, "---\n")
	assert.NilError(t, less.AddFile("/addons/shop.yaml", []byte(documents[1]+"---\n"+documents[2])))
	server.refuse = "/namespaces/shop"
	_, err = c.ApplySet(t.Context(), less, true)
	assert.ErrorContains(t, err, "/addons/shop.yaml:1: apply Namespace shop: ")
	server.refuse = ""
	_, err = c.ApplySet(t.Context(), less, false)
	assert.NilError(t, err)
	assert.Assert(t, !slices.ContainsFunc(server.take(), func(s string) bool { return strings.HasPrefix(s, "DELETE") }))
	_, err = c.ApplySet(t.Context(), less, true)
	assert.NilError(t, err)
	assert.DeepEqual(t, server.take()[3:], []string{"DELETE " + settings, "DELETE " + thing, "PATCH " + parent})

	assert.NilError(t, c.RemoveSet(t.Context(), "shop"))
	assert.DeepEqual(t, server.take(), []string{"DELETE " + definition, "DELETE " + namespace, "DELETE " + parent})
	assert.NilError(t, c.RemoveSet(t.Context(), "shop"), "nothing is left")
}

func TestAddFile(t *testing.T) {
	t.Parallel()
	s := &Set{Name: "a"}
	err := s.AddFile("/a.yaml", []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: good}\n---\n\n# text\nkind: ConfigMap\n---\na: 1\nb: [\nc: 2\n---\nd: 1\nd: 2\n"))
	for _, want := range []string{
		"/a.yaml:7: apiVersion, kind and metadata.name are required", "/a.yaml:1", "/a.yaml:14: key \"d\" already set in map",
	} {
		assert.Check(t, is.ErrorContains(err, want))
	}
	assert.Assert(t, is.Len(s.Objects(), 1), "the valid object is kept")
	assert.NilError(t, s.AddFile("/b.json", []byte(`{"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "n"}}]}`)))
	assert.Equal(t, s.Objects()[ObjectID{"Service", "n", "s"}], "/b.json:1")
	assert.NilError(t, s.AddFile("/c.yaml", []byte("--- # nothing\n# nothing\n")))
}
