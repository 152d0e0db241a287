package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

type object = map[string]any

// endpointsEach is the number of endpoints of a Service, so that 2,000 Services have more than 5,000 endpoints.
const endpointsEach = 3

// fakeAPI serves lists and watches of Services and EndpointSlices, with only the fields that the forwarder reads.
type fakeAPI struct {
	srv *http.Server
	url string

	mu       sync.Mutex
	version  int
	services map[string]int // name -> node port
	watchers map[chan []byte]string
	twice    bool // send each event twice
	stale    int  // watches that were refused
}

func newFakeAPI() (*fakeAPI, error) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f := &fakeAPI{url: "http://" + l.Addr().String(), version: 1, services: map[string]int{}, watchers: map[chan []byte]string{}}
	f.srv = &http.Server{Handler: f, ReadHeaderTimeout: time.Minute}
	go func() { _ = f.srv.Serve(l) }() // runs until close
	return f, nil
}

func (f *fakeAPI) close() { _ = f.srv.Close() }

func (f *fakeAPI) kubeconfig() []byte {
	return fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Config","current-context":"x","clusters":[{"name":"x","cluster":{"server":%q}}],`+
		`"users":[{"name":"x","user":{}}],"contexts":[{"name":"x","context":{"cluster":"x","user":"x"}}]}`, f.url)
}

// kind returns "slice" or "service" for the path of a request.
func kind(path string) string {
	if strings.HasSuffix(path, "/endpointslices") {
		return "slice"
	}
	return "service"
}

func (f *fakeAPI) object(kind, name string, port int) object {
	meta := object{"namespace": "bench", "name": name, "uid": name, "resourceVersion": strconv.Itoa(f.version)}
	if kind == "service" {
		return object{"metadata": meta, "spec": object{"type": "NodePort", "ipFamilies": []string{"IPv4"}, "clusterIPs": []string{"10.43.0.1"},
			"ports": []object{{"name": "p", "protocol": "TCP", "port": 80, "nodePort": port}}}}
	}
	meta["labels"] = object{"kubernetes.io/service-name": name}
	var endpoints []object
	for i := range endpointsEach {
		endpoints = append(endpoints, object{"addresses": []string{"10.42.0." + strconv.Itoa(i+2)}, "nodeName": "bench",
			"conditions": object{"ready": true, "serving": true, "terminating": false}})
	}
	return object{"metadata": meta, "addressType": "IPv4", "endpoints": endpoints}
}

// send sends an event to all watchers and returns the time. The caller holds the lock.
func (f *fakeAPI) send(event, name string, port int) int64 {
	f.version++
	raw := map[string][]byte{}
	for _, k := range []string{"slice", "service"} {
		raw[k], _ = json.Marshal(object{"type": event, "object": f.object(k, name, port)}) // cannot fail for maps of strings and numbers
	}
	at := time.Now().UnixNano()
	for c, k := range f.watchers {
		c <- raw[k]
		if f.twice {
			c <- raw[k]
		}
	}
	return at
}

func (f *fakeAPI) set(name string, port int) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	event := "ADDED"
	if _, there := f.services[name]; there {
		event = "MODIFIED"
	}
	f.services[name] = port
	return f.send(event, name, port)
}

func (f *fakeAPI) remove(name string) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	port, there := f.services[name]
	if !there {
		return time.Now().UnixNano()
	}
	delete(f.services, name)
	return f.send("DELETED", name, port)
}

// drop ends all watches.
func (f *fakeAPI) drop() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.watchers {
		close(c)
		delete(f.watchers, c)
	}
}

func (f *fakeAPI) clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, port := range f.services {
		delete(f.services, name)
		f.send("DELETED", name, port)
	}
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Query().Get("watch") == "" {
		f.mu.Lock()
		items := []object{}
		for name, port := range f.services {
			items = append(items, f.object(kind(r.URL.Path), name, port))
		}
		list := object{"metadata": object{"resourceVersion": strconv.Itoa(f.version)}, "items": items}
		f.mu.Unlock()
		_ = json.NewEncoder(w).Encode(list) // the client reports an incomplete answer
		return
	}
	f.watch(w, r)
}

// buffered is the size of a watcher's event queue.
const buffered = 1 << 14

// watch starts a watch if the resource version is the current one. Otherwise it answers 410, so that the client lists again.
func (f *fakeAPI) watch(w http.ResponseWriter, r *http.Request) {
	events := make(chan []byte, buffered)
	f.mu.Lock()
	stale := r.URL.Query().Get("resourceVersion") != strconv.Itoa(f.version)
	if stale {
		f.stale++
	} else {
		f.watchers[events] = kind(r.URL.Path)
	}
	f.mu.Unlock()
	if stale {
		_, _ = fmt.Fprint(w, `{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired"}}`)
		return
	}
	defer func() {
		f.mu.Lock()
		delete(f.watchers, events)
		f.mu.Unlock()
	}()
	flush := http.NewResponseController(w)
	for {
		if flush.Flush() != nil {
			return
		}
		select {
		case raw, on := <-events:
			if !on {
				return
			}
			if _, err := w.Write(raw); err != nil {
				return
			}
		case <-r.Context().Done():
			return
		}
	}
}
