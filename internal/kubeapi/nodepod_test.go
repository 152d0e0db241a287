package kubeapi

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"gotest.tools/v3/assert"
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
