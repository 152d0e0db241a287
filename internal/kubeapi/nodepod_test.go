package kubeapi

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	"k8s.io/apimachinery/pkg/types"
)

func TestNodePods(t *testing.T) {
	t.Parallel()
	f := &fakeAPI{Server: httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Check(t, r.URL.RequestURI() == "/api/v1/pods?fieldSelector=spec.nodeName%3Dn", r.URL.RequestURI())
		_, err := io.WriteString(w, `{"items":[
			{"metadata":{"namespace":"a","name":"db","uid":"1","deletionGracePeriodSeconds":9},
			 "spec":{"priority":7,"restartPolicy":"Never","terminationGracePeriodSeconds":45,"containers":[{"name":"x"},{"name":"y"}],
			         "initContainers":[{"name":"s1","restartPolicy":"Always"},{"name":"i"},{"name":"s2","restartPolicy":"Always"}]},
			 "status":{"phase":"Running"}},
			{"metadata":{"namespace":"a","name":"done","uid":"2"},"status":{"phase":"Succeeded"}},
			{"metadata":{"namespace":"b","name":"static-n","uid":"3","annotations":{"kubernetes.io/config.mirror":"m"},
			             "deletionTimestamp":"2026-01-02T03:04:05Z","deletionGracePeriodSeconds":4},"status":{"phase":"Pending"}}]}`)
		assert.Check(t, err)
	}))}
	defer f.Close()
	got, err := f.client(t).NodePods(t.Context(), "n")
	assert.NilError(t, err)
	four := int64(4)
	assert.DeepEqual(t, got, []NodePod{
		{Namespace: "a", Name: "db", UID: "1", Priority: 7, RestartPolicy: "Never", GraceSeconds: 45, Containers: []string{"x", "y"}, Sidecars: []string{"s1", "s2"}},
		{Namespace: "b", Name: "static-n", UID: "m", Static: true, DeletionGraceSeconds: &four},
	})
}

func TestMarkContainersWaiting(t *testing.T) {
	t.Parallel()
	var got string
	f := newFakeAPI(t, false)
	f.other = func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.Check(t, err)
		got = r.Method + " " + r.URL.Path + " " + r.Header.Get("Content-Type") + " " + string(body)
		answer(w, 200, object{})
	}
	err := f.client(t).MarkContainersWaiting(t.Context(), NodePod{Namespace: "a", Name: "db", UID: "1", Sidecars: []string{"s"}}, []string{"c", "s"}, "R", "m")
	assert.NilError(t, err)
	const state = `"ready":false,"state":{"running":null,"waiting":{"reason":"R","message":"m"}}}]`
	assert.Equal(t, got, "PATCH /api/v1/namespaces/a/pods/db/status "+mimeStrategicPatch+
		` {"metadata":{"uid":"1"},"status":{"containerStatuses":[{"name":"c",`+state+`,"initContainerStatuses":[{"name":"s",`+state+`}}`)
}

func TestRemovePods(t *testing.T) {
	t.Parallel()
	var deleted []string
	f := &fakeAPI{Server: httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			answer(w, 200, object{"items": []object{
				{"metadata": object{"namespace": "a", "name": "web"}}, {"metadata": object{"namespace": "b", "name": "gone"}},
			}})
			return
		}
		deleted = append(deleted, r.Method+" "+r.URL.RequestURI())
		answer(w, 404, status(404, "NotFound", "gone"))
	}))}
	defer f.Close()
	removed, err := f.client(t).RemovePods(t.Context(), "old")
	assert.NilError(t, err)
	assert.Equal(t, removed, 2)
	assert.DeepEqual(t, deleted, []string{
		"DELETE /api/v1/namespaces/a/pods/web?gracePeriodSeconds=0", "DELETE /api/v1/namespaces/b/pods/gone?gracePeriodSeconds=0",
	})
}

func podWithIP(name, uid, phase, ip string) object {
	o := object{"metadata": object{"namespace": "ns", "name": name, "uid": uid}, "status": object{"phase": phase}}
	if ip != "" {
		o["status"] = object{"phase": phase, "podIP": ip, "podIPs": []object{{"ip": ip}}}
	}
	return o
}

// TestResetPods checks that the addresses of pods that have not ended are removed, also if some of them are deleted meanwhile.
func TestResetPods(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t, false)
	for _, o := range []object{
		podWithIP("web", "1", "Running", "10.42.0.9"), podWithIP("gone", "2", "Running", "10.42.0.8"),
		podWithIP("done", "3", "Succeeded", "10.42.0.7"), podWithIP("new", "4", "Pending", ""),
	} {
		o["spec"] = object{"nodeName": "me"}
		f.put(o)
	}
	var mu sync.Mutex
	patched := map[string]string{}
	f.other = func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Metadata struct{ UID string }
			Status   map[string]any
		}
		assert.Check(t, json.NewDecoder(r.Body).Decode(&body))
		ip, hasIP := body.Status["podIP"]
		ips, hasIPs := body.Status["podIPs"]
		assert.Check(t, hasIP && ip == nil && hasIPs && ips == nil)
		condition := body.Status["conditions"].([]any)[0].(object)
		assert.Check(t, condition["type"] == "Ready" && condition["status"] == "False" && condition["reason"] == "NodeStarting", condition)
		mu.Lock()
		defer mu.Unlock()
		patched[r.Method+" "+r.URL.Path] = body.Metadata.UID
		if strings.Contains(r.URL.Path, "gone") {
			answer(w, 404, status(404, "NotFound", "gone"))
			return
		}
		answer(w, 200, object{})
	}
	pods, err := f.client(t).ResetPods(t.Context(), "me", "NodeStarting", "m")
	assert.NilError(t, err)
	slices.Sort(pods)
	assert.DeepEqual(t, pods, []types.UID{"1", "2"})
	assert.DeepEqual(t, patched, map[string]string{
		"PATCH /api/v1/namespaces/ns/pods/web/status": "1", "PATCH /api/v1/namespaces/ns/pods/gone/status": "2",
	})
}

// ownSlice is a slice of the control plane's controller with endpoints for the given pods.
func ownSlice(name string, pods ...string) object {
	o := slice(name, "a", "IPv4")
	o["metadata"].(object)["labels"].(object)["endpointslice.kubernetes.io/managed-by"] = "endpointslice-controller.k8s.io"
	endpoints := []object{endpoint("me", object{"ready": true})} // without a pod
	for _, uid := range pods {
		e := endpoint("me", object{"ready": true})
		e["targetRef"] = object{"kind": "Pod", "uid": uid}
		endpoints = append(endpoints, e)
	}
	o["endpoints"] = endpoints
	return o
}

func TestRemoveEndpoints(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t, false)
	f.put(ownSlice("a", "1", "7"))
	f.put(ownSlice("b", "7"))
	custom := ownSlice("c", "1")
	delete(custom["metadata"].(object)["labels"].(object), "endpointslice.kubernetes.io/managed-by") // made by the user
	f.put(custom)
	var patched []string
	f.other = func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Metadata  struct{ ResourceVersion string }
			Endpoints []struct{ TargetRef *struct{ UID string } }
		}
		assert.Check(t, json.NewDecoder(r.Body).Decode(&body))
		assert.Check(t, body.Metadata.ResourceVersion != "")
		assert.Check(t, len(body.Endpoints) == 2 && body.Endpoints[0].TargetRef == nil && body.Endpoints[1].TargetRef.UID == "7", body.Endpoints)
		patched = append(patched, r.Method+" "+r.URL.Path+" "+r.Header.Get("Content-Type"))
		answer(w, 200, object{})
	}
	assert.NilError(t, f.client(t).RemoveEndpoints(t.Context(), []types.UID{"1", "2"}))
	assert.DeepEqual(t, patched, []string{"PATCH /apis/discovery.k8s.io/v1/namespaces/ns/endpointslices/a " + mimeMergePatch})
}

// TestWaitEndpointsRemoved checks that a worker waits for its cluster, for a limited time.
func TestWaitEndpointsRemoved(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t, false)
	c, pods := f.client(t), []types.UID{"1"}
	f.put(ownSlice("a", "1", "7"))
	f.put(ownSlice("b", "1"))
	removed, err := c.WaitEndpointsRemoved(t.Context(), pods, time.Millisecond)
	assert.NilError(t, err)
	assert.Assert(t, !removed)
	go func() {
		f.put(ownSlice("a", "7"))
		f.remove(ownSlice("b"))
	}()
	removed, err = c.WaitEndpointsRemoved(t.Context(), pods, time.Minute)
	assert.NilError(t, err)
	assert.Assert(t, removed)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = c.WaitEndpointsRemoved(ctx, pods, time.Minute)
	assert.ErrorIs(t, err, context.Canceled)
}
