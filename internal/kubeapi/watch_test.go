package kubeapi

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

func pemOf(c *x509.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
}

// follow runs WatchServices and returns its events; the watch ends with the test.
func follow(t *testing.T, c *Client) <-chan ServiceEvent {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	events, done := make(chan ServiceEvent), make(chan error, 1)
	go func() {
		done <- c.WatchServices(ctx, true, func(e ServiceEvent) {
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
	return events
}

func next(t *testing.T, events <-chan ServiceEvent) ServiceEvent {
	t.Helper()
	select {
	case e := <-events:
		return e
	case <-time.After(20 * time.Second):
		t.Fatal("no event")
		return ServiceEvent{}
	}
}

func TestWatchServices(t *testing.T) {
	for _, tls := range []bool{false, true} {
		f := newFakeAPI(t, tls)
		a := service("a", "1", 30001)
		f.put(a)
		events := follow(t, f.client(t))
		assert.DeepEqual(t, next(t, events), ServiceEvent{Services: []Service{wantService("a", "1", 30001)}})

		f.put(service("b", "2", 30002))
		assert.DeepEqual(t, next(t, events), ServiceEvent{Change: ServiceSet, Service: wantService("b", "2", 30002)})

		f.put(service("b", "2", 30002)) // no relevant field has changed
		f.put(service("b", "2", 30003))
		assert.DeepEqual(t, next(t, events), ServiceEvent{Change: ServiceSet, Service: wantService("b", "2", 30003)})

		f.remove(a)
		got := next(t, events)
		assert.Equal(t, got.Change, ServiceGone)
		assert.Equal(t, got.Service.Name, "a")
		f.mu.Lock()
		assert.Equal(t, f.lists, 1)
		assert.Equal(t, f.watches, 1)
		f.mu.Unlock()
	}
}

func TestWatchServicesContinuesAfterDrop(t *testing.T) {
	f := newFakeAPI(t, false)
	f.double = true
	events := follow(t, f.client(t))
	assert.Equal(t, next(t, events).Change, ServicesListed)
	f.put(service("a", "1", 30001))
	assert.Equal(t, next(t, events).Service.Name, "a")
	f.drop(false)
	f.put(service("b", "1", 30002))
	assert.Equal(t, next(t, events).Service.Name, "b")
	f.mu.Lock()
	defer f.mu.Unlock()
	assert.Equal(t, f.lists, 1, "a dropped watch continues where it was")
}

// After a refused connection, the watch continues without a new list, because the server may only be starting.
func TestWatchServicesContinuesAfterRefusals(t *testing.T) {
	f := newFakeAPI(t, false)
	c := f.client(t)
	var refusals atomic.Int32
	refusals.Store(20)
	direct := c.http
	c.http = &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		if r.URL.Query().Has("watch") && refusals.Add(-1) >= 0 {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
		}
		return direct.Do(r)
	})}
	events := follow(t, c)
	assert.Equal(t, next(t, events).Change, ServicesListed)
	f.put(service("a", "1", 30001))
	assert.Equal(t, next(t, events).Service.Name, "a")
	f.mu.Lock()
	defer f.mu.Unlock()
	assert.Equal(t, f.lists, 1)
	assert.Assert(t, refusals.Load() < 0)
}

func TestWatchServicesListsAgainWhenExpired(t *testing.T) {
	f := newFakeAPI(t, false)
	a := service("a", "1", 30001)
	f.put(a)
	events := follow(t, f.client(t))
	next(t, events)
	f.mu.Lock()
	delete(f.objects, keyOf(a)) // a deletion that no watch reports
	f.mu.Unlock()
	f.drop(true)
	f.put(service("b", "1", 30002))
	for {
		e := next(t, events)
		if e.Change == ServicesListed && len(e.Services) == 0 {
			continue // listed before b existed
		}
		if e.Change == ServicesListed {
			assert.DeepEqual(t, e.Services, []Service{wantService("b", "1", 30002)})
		} else {
			assert.Equal(t, e.Service.Name, "b")
		}
		return
	}
}

// typed is a Service of another type, or headless.
func typed(name, typ, clusterIP string) object {
	o := service(name, "1", 30001)
	spec := o["spec"].(object)
	spec["type"], spec["clusterIP"] = typ, clusterIP
	return o
}

func TestWatchServicesSelection(t *testing.T) {
	for exposed, want := range map[bool][]string{true: {"a"}, false: {"a", "inner"}} {
		f := newFakeAPI(t, false)
		c := f.client(t)
		f.put(typed("a", "NodePort", "10.43.0.1"))
		f.put(typed("inner", "ClusterIP", "10.43.0.2"))
		f.put(typed("headless", "ClusterIP", "None"))
		f.put(typed("name", "ExternalName", ""))
		next := gather(t, func(ctx context.Context, fn func(ServiceEvent)) error { return c.WatchServices(ctx, exposed, fn) })
		var got []string
		for _, s := range next().Services {
			got = append(got, s.Name)
		}
		assert.DeepEqual(t, got, want)
		f.put(typed("a", "ExternalName", "")) // reported as gone
		e := next()
		assert.Assert(t, e.Change == ServiceGone && e.Service.Name == "a", "%v", e)
		f.put(typed("a", "LoadBalancer", "10.43.0.3"))
		e = next()
		assert.Assert(t, e.Change == ServiceSet && e.Service.Type == "LoadBalancer", "%v", e)
	}
}

func TestWatchServicesPages(t *testing.T) {
	f := newFakeAPI(t, false)
	const n = 2*500 + 7 // a page has 500 objects
	for i := range n {
		f.put(service(ident(i), "u", 30000+i))
	}
	e := next(t, follow(t, f.client(t)))
	assert.Equal(t, len(e.Services), n)
	assert.Equal(t, f.lists, 3)
}

// The final state is the server's after any disruption of the connection.
func TestWatchServicesConverges(t *testing.T) {
	f := newFakeAPI(t, false)
	f.double = true
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	events := follow(t, f.client(t))
	next(t, events)

	state := map[string]Service{}
	take := func(e ServiceEvent) {
		switch e.Change {
		case ServicesListed:
			clear(state)
			for _, s := range e.Services {
				state[s.Name] = s
			}
		case ServiceSet:
			state[e.Service.Name] = e.Service
		case ServiceGone:
			delete(state, e.Service.Name)
		}
	}
	for range 300 {
		name := ident(rnd.IntN(8))
		switch rnd.IntN(6) {
		case 0:
			f.drop(false)
		case 1:
			f.drop(true)
		case 2:
			f.mu.Lock()
			o, ok := f.objects["ns/"+name]
			f.mu.Unlock()
			if ok {
				f.remove(o)
			}
		default:
			f.put(service(name, "u", 30000+rnd.IntN(100)))
		}
		select {
		case e := <-events:
			take(e)
		default:
		}
	}
	f.put(service("last", "u", 1))
	for state["last"].Name == "" {
		take(next(t, events))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	assert.Equal(t, len(state), len(f.objects))
	for _, o := range f.objects {
		name := o["metadata"].(object)["name"].(string)
		port := o["spec"].(object)["ports"].([]object)[0]["nodePort"].(int)
		assert.DeepEqual(t, state[name], wantService(name, "u", port))
	}
}

func TestWaitNode(t *testing.T) {
	f := newFakeAPI(t, true)
	c := f.client(t)
	asked := make(chan string, 8)
	got := make(chan *corev1.Node, 1)
	go func() {
		n, err := c.WaitNode(t.Context(), "me", func(n *corev1.Node) bool {
			ready, why := NodeReady(n)
			asked <- why
			return ready
		})
		if err != nil {
			t.Error(err)
		}
		got <- n
	}()
	f.put(node("other", "True"))
	f.put(node("me", "False"))
	assert.Equal(t, <-asked, "Ready is False (KubeletNotReady): cni plugin not initialized")
	f.drop(true)
	f.put(node("me", "True"))
	n := <-got
	assert.Equal(t, n.Name, "me")
	assert.Equal(t, n.Spec.PodCIDR, "10.42.0.0/24")
	assert.Assert(t, is.Len(n.ManagedFields, 0))
}

func TestWaitNodeReportsLastState(t *testing.T) {
	t.Parallel()
	f := newFakeAPI(t, false)
	c := f.client(t)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	never := func(*corev1.Node) bool { return false }
	_, err := c.WaitNode(ctx, "me", never)
	assert.ErrorContains(t, err, "wait for node me: context deadline exceeded; last: not registered yet")
	assert.Assert(t, errors.Is(err, errdefs.ErrTimeout))

	f.put(node("me", "False"))
	ctx, cancel = context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err = c.WaitNode(ctx, "me", never)
	assert.ErrorContains(t, err, "cni plugin not initialized")

	ctx, cancel = context.WithCancel(t.Context())
	cancel()
	_, err = c.WaitNode(ctx, "me", never)
	assert.Assert(t, errors.Is(err, context.Canceled) && !errors.Is(err, errdefs.ErrTimeout))
}

func TestWatchNodeReportsAbsence(t *testing.T) {
	f := newFakeAPI(t, false)
	c := f.client(t)
	ctx, cancel := context.WithCancel(t.Context())
	seen, done := make(chan *corev1.Node), make(chan error, 1)
	go func() {
		done <- c.WatchNode(ctx, "me", func(n *corev1.Node) {
			select {
			case seen <- n:
			case <-ctx.Done():
			}
		})
	}()
	assert.Equal(t, string((<-seen).UID), "")
	me := node("me", "True")
	f.put(me)
	assert.Equal(t, string((<-seen).UID), "u-me")
	f.remove(me)
	gone := <-seen
	assert.Equal(t, gone.Name, "me")
	assert.Equal(t, string(gone.UID), "")
	cancel()
	assert.ErrorIs(t, <-done, context.Canceled)
}
