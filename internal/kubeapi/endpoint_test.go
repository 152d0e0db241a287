package kubeapi

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	corev1 "k8s.io/api/core/v1"
)

// gather runs a watch until the test ends. It returns a function that returns the next event.
func gather[E any](t *testing.T, run func(context.Context, func(E)) error) func() E {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	events, done := make(chan E), make(chan error, 1)
	go func() {
		done <- run(ctx, func(e E) {
			select {
			case events <- e:
			case <-ctx.Done():
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		assert.ErrorIs(t, <-done, context.Canceled)
	})
	return func() E {
		t.Helper()
		select {
		case e := <-events:
			return e
		case <-time.After(20 * time.Second):
			t.Fatal("no event")
			panic("unreachable")
		}
	}
}

func slice(name, service, addressType string, endpoints ...object) object {
	return object{
		"metadata":    object{"namespace": "ns", "name": name, "labels": object{"kubernetes.io/service-name": service, "x": "y"}},
		"addressType": addressType, "endpoints": endpoints,
		"ports": []object{{"port": 80}},
	}
}

func endpoint(node string, conditions object) object {
	return object{"addresses": []string{"10.42.0.9"}, "nodeName": node, "conditions": conditions}
}

func TestWatchEndpoints(t *testing.T) {
	f := newFakeAPI(t, false)
	c := f.client(t)
	ready, not := object{"ready": true}, object{"ready": false, "serving": false}
	f.put(slice("a-1", "a", "IPv4", endpoint("other", ready)))
	f.put(slice("z-1", "z", "IPv4", endpoint("me", not)))
	next := gather(t, func(ctx context.Context, fn func(EndpointsEvent)) error { return c.WatchEndpoints(ctx, "me", nil, fn) })
	a := ServiceName{"ns", "a"}
	assert.DeepEqual(t, next(), EndpointsEvent{Listed: true, All: map[ServiceName]Endpoints{a: {Ready4: true}}})

	f.put(slice("a-2", "a", "IPv4", endpoint("other", ready))) // another one changes nothing
	f.put(slice("a-3", "a", "IPv4", endpoint("me", object{}))) // no condition means ready
	assert.DeepEqual(t, next(), EndpointsEvent{Service: a, Endpoints: Endpoints{Ready4: true, Local4: true}})
	f.put(slice("a-6", "a", "IPv6", endpoint("me", object{"ready": false, "serving": true, "terminating": true})))
	assert.DeepEqual(t, next(), EndpointsEvent{Service: a, Endpoints: Endpoints{Ready4: true, Local4: true, Ready6: true, Local6: true}})
	f.put(slice("a-n", "a", "FQDN", endpoint("me", ready))) // names are not served
	f.remove(slice("a-3", "a", "IPv4"))
	assert.DeepEqual(t, next(), EndpointsEvent{Service: a, Endpoints: Endpoints{Ready4: true, Ready6: true, Local6: true}})
	f.put(slice("a-6", "b", "IPv6", endpoint("me", ready))) // to another Service
	assert.DeepEqual(t, next(), EndpointsEvent{Service: a, Endpoints: Endpoints{Ready4: true}})
	assert.DeepEqual(t, next(), EndpointsEvent{Service: ServiceName{"ns", "b"}, Endpoints: Endpoints{Ready6: true, Local6: true}})
	f.put(slice("a-1", "a", "IPv4", endpoint("other", not)))
	f.put(slice("a-2", "a", "IPv4"))
	assert.DeepEqual(t, next(), EndpointsEvent{Service: a})
}

func TestWatchEndpointsOfSomeServices(t *testing.T) {
	f := newFakeAPI(t, false)
	c := f.client(t)
	ready := endpoint("other", object{})
	headless := slice("h-1", "h", "IPv4", ready)
	headless["metadata"].(object)["labels"].(object)["service.kubernetes.io/headless"] = ""
	unowned := slice("u-1", "u", "IPv4", ready)
	delete(unowned["metadata"].(object)["labels"].(object), "kubernetes.io/service-name")
	for _, o := range []object{slice("a-1", "a", "IPv4", ready), slice("b-1", "b", "IPv4", ready), slice("z-1", "z", "IPv4", ready), headless, unowned} {
		f.put(o)
	}
	has := func(names ...string) map[ServiceName]Endpoints {
		all := map[ServiceName]Endpoints{}
		for _, n := range names {
			all[ServiceName{"ns", n}] = Endpoints{Ready4: true}
		}
		return all
	}
	watch := func(services []ServiceName) func() EndpointsEvent {
		return gather(t, func(ctx context.Context, fn func(EndpointsEvent)) error {
			return c.WatchEndpoints(ctx, "me", services, fn)
		})
	}
	assert.DeepEqual(t, watch(nil)().All, has("a", "b", "z"))
	next := watch([]ServiceName{{"other", "b"}, {"ns", "b"}, {"ns", "a"}})
	assert.DeepEqual(t, next().All, has("a", "b"))
	f.remove(slice("z-1", "z", "IPv4", ready))
	f.put(slice("b-1", "z", "IPv4", ready)) // no longer a watched one
	assert.DeepEqual(t, next(), EndpointsEvent{Service: ServiceName{"ns", "b"}})
	assert.Equal(t, slicesOf([]ServiceName{{"y", "b"}, {"x", "b"}, {"x", "a"}}), "kubernetes.io/service-name in (a,b),!service.kubernetes.io/headless")
}

// The final counts are correct after any disruption of the connection.
func TestWatchEndpointsConverges(t *testing.T) {
	f := newFakeAPI(t, false)
	f.double = true
	c := f.client(t)
	rnd := rand.New(rand.NewPCG(rand.Uint64(), 0))
	next := gather(t, func(ctx context.Context, fn func(EndpointsEvent)) error { return c.WatchEndpoints(ctx, "me", nil, fn) })
	next()
	f.put(slice("first", "first", "IPv4", endpoint("me", object{})))
	want := map[string]string{}
	go func() {
		for range 300 {
			name := ident(rnd.IntN(6))
			switch rnd.IntN(7) {
			case 0:
				f.drop(rnd.IntN(2) == 0)
			case 1:
				f.remove(slice(name, "x", "IPv4"))
				delete(want, name)
			case 2:
				f.put(slice(name, ident(rnd.IntN(2)), "IPv4", endpoint("me", object{"ready": false})))
				delete(want, name)
			default:
				want[name] = ident(rnd.IntN(2))
				f.put(slice(name, want[name], "IPv4", endpoint("me", object{"ready": true})))
			}
		}
		f.put(slice("last", "last", "IPv4", endpoint("me", object{})))
	}()
	state := map[ServiceName]Endpoints{}
	for state[ServiceName{"ns", "last"}] == (Endpoints{}) {
		if e := next(); e.Listed {
			state = e.All
		} else {
			state[e.Service] = e.Endpoints
		}
	}
	ready := map[string]bool{}
	for _, service := range want {
		ready[service] = true
	}
	for i := range 2 {
		assert.Equal(t, state[ServiceName{"ns", ident(i)}].Ready4, ready[ident(i)], ident(i))
	}
}

func pod(name, node, phase string, ports ...object) object {
	return object{
		"metadata": object{"namespace": "ns", "name": name, "uid": "u-" + name, "annotations": object{"x": "y", "rootlessnode.dev/forward": "true"}},
		"spec": object{"nodeName": node, "containers": []object{{"ports": ports}}, "initContainers": []object{
			{"ports": []object{{"hostPort": 1, "containerPort": 1}}},
			{"restartPolicy": "Always", "ports": []object{{"name": "side", "containerPort": 2}}}}},
		"status": object{"phase": phase, "podIPs": []object{{"ip": "10.42.0.5"}}},
	}
}

func TestWatchPods(t *testing.T) {
	f := newFakeAPI(t, false)
	c := f.client(t)
	http := object{"name": "web", "containerPort": 80, "hostPort": 8080, "hostIP": "127.0.0.1", "protocol": "TCP"}
	f.put(pod("a", "me", "Running", http))
	f.put(pod("far", "other", "Running", http))
	f.put(pod("plain", "me", "Running", object{"containerPort": 80}))
	f.put(pod("over", "me", "Succeeded", http))
	next := gather(t, func(ctx context.Context, fn func(PodEvent)) error { return c.WatchPods(ctx, "me", fn) })
	want := func(name string, port int) Pod {
		return Pod{Namespace: "ns", Name: name, UID: "u-" + name, IPs: []string{"10.42.0.5"}, Annotations: map[string]string{"rootlessnode.dev/forward": "true"},
			Ports: []PodPort{{"web", "TCP", 80, port, "127.0.0.1"}, {"side", "", 2, 0, ""}}}
	}
	assert.DeepEqual(t, next(), PodEvent{Listed: true, Pods: []Pod{want("a", 8080)}})
	f.put(pod("a", "me", "Running", http)) // no relevant change
	f.put(pod("b", "me", "Pending", http))
	assert.DeepEqual(t, next(), PodEvent{Pod: want("b", 8080)})
	f.put(pod("b", "me", "Failed", http))
	e := next()
	assert.Assert(t, e.Gone && e.Pod.Name == "b")
	f.remove(pod("b", "me", "Failed", http)) // already reported
	f.remove(pod("a", "me", "Running", http))
	e = next()
	assert.Assert(t, e.Gone && e.Pod.Name == "a")
}

func TestApplyIngress(t *testing.T) {
	f := newFakeAPI(t, false)
	var asked []string
	code := http.StatusOK
	f.other = func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.RequestURI()+" "+r.Header.Get("Content-Type")+" "+bodyOf(r))
		answer(w, code, object{})
	}
	c := f.client(t)
	assert.NilError(t, c.ApplyIngress(t.Context(), "ns", "a", "u1", []string{"127.0.0.1"}))
	assert.NilError(t, c.ApplyIngress(t.Context(), "ns", "a", "u1", nil))
	code = http.StatusConflict
	assert.ErrorContains(t, c.ApplyIngress(t.Context(), "ns", "a", "u0", nil), "apply the addresses of service ns/a")
	assert.Equal(t, asked[0], "PATCH /api/v1/namespaces/ns/services/a/status?fieldManager=rootlessnode&force=true application/apply-patch+yaml "+
		`{"apiVersion":"v1","kind":"Service","metadata":{"name":"a","namespace":"ns","uid":"u1"},"status":{"loadBalancer":{"ingress":[{"ip":"127.0.0.1","ipMode":"Proxy"}]}}}`)
	assert.Equal(t, asked[1], "PATCH /api/v1/namespaces/ns/services/a/status?fieldManager=rootlessnode&force=true application/apply-patch+yaml "+
		`{"apiVersion":"v1","kind":"Service","metadata":{"name":"a","namespace":"ns","uid":"u1"}}`)
}

func TestServiceOfStatus(t *testing.T) {
	t.Parallel()
	var o corev1.Service
	assert.NilError(t, json.Unmarshal([]byte(`{"spec":{"clusterIPs":["10.43.0.1"]},"status":{"loadBalancer":{"ingress":[{"hostname":"x"},{"ip":"127.0.0.1"}]}}}`), &o))
	assert.DeepEqual(t, serviceOf(&o), Service{ClusterIPs: []string{"10.43.0.1"}, Ingress: []string{"127.0.0.1"}})
}
