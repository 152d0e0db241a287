package kubeapi

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	corev1 "k8s.io/api/core/v1"
)

func labelled(name string, generation int) object {
	return object{"metadata": object{
		"namespace": "kube-system", "name": name, "generation": generation, "labels": object{"managed": "yes"},
	}}
}

// await returns the next value of a channel.
func await[T any](t *testing.T, values <-chan T) T {
	t.Helper()
	select {
	case v := <-values:
		return v
	case <-t.Context().Done():
		t.Fatal("no value")
		panic("unreachable")
	}
}

// watching runs a watch that sends to a channel until the test ends.
func watching[T any](t *testing.T, watch func(context.Context, func(T)) error) <-chan T {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	values, done := make(chan T), make(chan error, 1)
	go func() {
		done <- watch(ctx, func(v T) {
			select {
			case values <- v:
			case <-ctx.Done():
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		assert.ErrorIs(t, <-done, context.Canceled)
	})
	return values
}

// WatchObjects reports existing, missing, changed and deleted objects of the manifest, and no others.
func TestWatchObjects(t *testing.T) {
	f := newFakeAPI(t, false)
	accept := make(chan string, 100)
	f.accept = func(r *http.Request) { accept <- r.Header.Get("Accept") }
	f.put(labelled("other", 1))
	const manifest = "{apiVersion: v1, kind: ConfigMap, metadata: {name: dns, namespace: kube-system}}"
	states := watching(t, func(ctx context.Context, fn func(ObjectState)) error {
		return f.client(t).WatchObjects(ctx, []byte(manifest), "managed=yes", fn)
	})
	id := ObjectID{"ConfigMap", "kube-system", "dns"}
	assert.DeepEqual(t, await(t, states), ObjectState{ObjectID: id})
	assert.Equal(t, <-accept, mimeMetadataList)
	assert.Equal(t, <-accept, mimeMetadata)
	f.put(labelled("dns", 1))
	first := await(t, states)
	assert.DeepEqual(t, first, ObjectState{ObjectID: id, Version: "12", Generation: 1})
	f.put(labelled("other", 2))
	f.put(labelled("dns", 1)) // only the status has changed
	assert.Assert(t, await(t, states).SameSpec(first))
	f.put(labelled("dns", 2))
	assert.Assert(t, !await(t, states).SameSpec(first))
	f.remove(labelled("dns", 2))
	assert.DeepEqual(t, await(t, states), ObjectState{ObjectID: id})
	assert.Equal(t, id.String(), "ConfigMap kube-system/dns")
	assert.Equal(t, ObjectID{"Namespace", "", "a"}.String(), "Namespace a")
	assert.Assert(t, !ObjectState{Version: "1"}.SameSpec(ObjectState{Version: "2"}), "a kind without generation")
	assert.ErrorContains(t, f.client(t).WatchObjects(t.Context(), []byte("kind: X"), "", nil), "are required")
}

func TestWatchConfigMap(t *testing.T) {
	f := newFakeAPI(t, false)
	data := watching(t, func(ctx context.Context, fn func(map[string]string)) error {
		return f.client(t).WatchConfigMap(ctx, "kube-system", "dns", fn)
	})
	assert.Assert(t, await(t, data) == nil)
	o := labelled("dns", 0)
	f.put(o)
	assert.DeepEqual(t, await(t, data), map[string]string{})
	o["data"] = object{"a": "b"}
	f.put(o)
	assert.DeepEqual(t, await(t, data), map[string]string{"a": "b"})
	f.remove(o)
	assert.Assert(t, await(t, data) == nil)
}

func TestWatchLabelledPods(t *testing.T) {
	f := newFakeAPI(t, false)
	a, b := labelled("a", 0), labelled("b", 0)
	f.put(a)
	lists := watching(t, func(ctx context.Context, fn func([]*corev1.Pod)) error {
		return f.client(t).WatchLabelledPods(ctx, "kube-system", "managed=yes", fn)
	})
	assert.Equal(t, len(await(t, lists)), 1)
	f.put(b)
	assert.Equal(t, len(await(t, lists)), 2)
	f.remove(a)
	last := await(t, lists)
	assert.Equal(t, len(last), 1)
	assert.Equal(t, last[0].Name, "b")
}

func TestInspect(t *testing.T) {
	f := newFakeAPI(t, false)
	f.other = func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/api/v1/namespaces/kube-system/services/dns":
			answer(w, 200, object{"spec": object{"clusterIP": "10.43.0.10"}})
		case "/apis/apps/v1/namespaces/kube-system/deployments/dns":
			answer(w, 200, object{"spec": object{"replicas": 2}, "status": object{"conditions": []object{
				{"type": "Available", "status": "False"}, {"type": "ReplicaFailure", "status": "True", "message": "quota"}}}})
		default:
			answer(w, 404, status(404, "NotFound", "not found"))
		}
	}
	c := f.client(t)
	s, err := c.Service(t.Context(), "kube-system", "dns")
	assert.NilError(t, err)
	assert.Equal(t, s.Spec.ClusterIP, "10.43.0.10")
	s, err = c.Service(t.Context(), "kube-system", "none")
	assert.Assert(t, s == nil && err == nil)
	d, err := c.Deployment(t.Context(), "kube-system", "dns")
	assert.NilError(t, err)
	assert.Equal(t, d.Spec.Replicas, 2)
	assert.Equal(t, d.Failure(), "quota")
	d, err = c.Deployment(t.Context(), "kube-system", "none")
	assert.Assert(t, d == nil && err == nil)
	f.put(object{"metadata": object{"name": "at"}, "spec": object{"clusterIP": "10.43.0.9"}})
	s, err = c.ServiceAt(t.Context(), "10.43.0.9")
	assert.NilError(t, err)
	assert.Equal(t, s.Name, "at")
	s, err = c.ServiceAt(t.Context(), "10.43.0.8")
	assert.Assert(t, s == nil && err == nil)
}

func TestRemoveStorageClass(t *testing.T) {
	f := newFakeAPI(t, false)
	var deleted []string
	f.other = func(w http.ResponseWriter, r *http.Request) {
		class := strings.TrimPrefix(r.URL.Path, "/apis/storage.k8s.io/v1/storageclasses/")
		switch {
		case r.Method == http.MethodDelete:
			deleted = append(deleted, class)
			answer(w, 200, object{})
		case class == "absent":
			answer(w, 404, status(404, "NotFound", "not found"))
		default:
			answer(w, 200, object{"provisioner": "example.com/" + class})
		}
	}
	c := f.client(t)
	for _, name := range []string{"absent", "own", "foreign"} {
		assert.NilError(t, c.RemoveStorageClass(t.Context(), name, "example.com/own"))
	}
	assert.DeepEqual(t, deleted, []string{"own"})
}
