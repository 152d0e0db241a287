package cristop

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/rootlessnode/rootlessnode/internal/criclient"
)

// TestHTTPGetHook checks the address, the port by number or name, and the headers of an httpGet hook.
func TestHTTPGetHook(t *testing.T) {
	t.Parallel()
	var got []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = append(got, r.Host+" "+r.URL.String()+" "+r.Header.Get("X-Key")+" "+r.Header.Get("User-Agent"))
		w.WriteHeader(http.StatusInternalServerError) // any response is a success
	}))
	defer server.Close()
	host, text, err := net.SplitHostPort(server.Listener.Addr().String())
	assert.NilError(t, err)
	port, err := strconv.Atoi(text)
	assert.NilError(t, err)
	headers := []corev1.HTTPHeader{{Name: "Host", Value: "h"}, {Name: "X-Key", Value: "v"}, {Name: "User-Agent", Value: "me"}}
	ports := []corev1.ContainerPort{{Name: "web", ContainerPort: int32(port)}}

	for _, tc := range []struct {
		name string
		f    *fakeRuntime
		get  corev1.HTTPGetAction
		want string
	}{
		{"number", &fakeRuntime{podIP: host}, corev1.HTTPGetAction{Path: "/quit?now=1", Port: intstr.FromInt32(int32(port))}, host + ":" + text + " /quit?now=1  " + userAgent},
		{"name and headers", &fakeRuntime{podIP: host}, corev1.HTTPGetAction{Path: "quit", Port: intstr.FromString("web"), HTTPHeaders: headers}, "h /quit v me"},
		{"number as text", &fakeRuntime{podIP: host}, corev1.HTTPGetAction{Port: intstr.FromString(text)}, host + ":" + text + " /  " + userAgent},
		{"host", &fakeRuntime{}, corev1.HTTPGetAction{Host: host, Port: intstr.FromInt32(int32(port))}, host + ":" + text + " /  " + userAgent},
		{"host network", &fakeRuntime{hostPods: true}, corev1.HTTPGetAction{Port: intstr.FromInt32(int32(port))}, host + ":" + text + " /  " + userAgent},
		{"HTTPS is not supported", &fakeRuntime{podIP: host}, corev1.HTTPGetAction{Scheme: "HTTPS", Port: intstr.FromInt32(int32(port))}, host + ":" + text + " /  " + userAgent},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got = nil
			s := &stopper{rt: tc.f, timeout: time.Minute, req: criclient.Request{NodeIP: host}}
			c := &container{name: "c", pod: &pod{}, ports: ports, preStop: &corev1.LifecycleHandler{HTTPGet: &tc.get}}
			assert.NilError(t, s.hook(t.Context(), c))
			assert.DeepEqual(t, got, []string{tc.want})
		})
	}

	for name, tc := range map[string]struct {
		f    *fakeRuntime
		get  corev1.HTTPGetAction
		want string
	}{
		"no such port": {&fakeRuntime{podIP: host}, corev1.HTTPGetAction{Port: intstr.FromString("none")}, `container c has no port "none"`},
		"no address":   {&fakeRuntime{}, corev1.HTTPGetAction{Port: intstr.FromInt32(int32(port))}, "find the pod's address: the pod has no address"},
	} {
		t.Run(name, func(t *testing.T) {
			s := &stopper{rt: tc.f, timeout: time.Minute}
			assert.Error(t, s.httpGet(t.Context(), &container{name: "c", pod: &pod{}}, &tc.get), tc.want)
		})
	}
}
