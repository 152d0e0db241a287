package noderole

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

func TestNewDNSWatch(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	w := newDNSWatch(component.Env{Config: cfg}, nil)
	assert.Equal(t, w.name+" "+w.address.String(), "kubernetes.default.svc.cluster.local 10.43.0.10")
	assert.Assert(t, w.own)
	cfg.ControlPlane.CoreDNS = false
	assert.Assert(t, newDNSWatch(component.Env{Config: cfg}, nil) == nil)
	cfg.Join.Server = "https://192.0.2.1:6443"
	assert.Assert(t, !newDNSWatch(component.Env{Config: cfg}, nil).own)
	cfg.Cluster.DNSAddress = ""
	assert.Assert(t, newDNSWatch(component.Env{Config: cfg}, nil) == nil)
}

func TestDNSHistory(t *testing.T) {
	t.Parallel()
	t0 := time.Unix(1000, 0)
	failure := errors.New("x")
	h := dnsHistory{began: t0}
	for _, step := range []struct {
		after    time.Duration
		err      error
		state    dnsState
		interval time.Duration
	}{
		{0, failure, dnsStarting, dnsFast},
		{dnsPatience - 1, failure, dnsStarting, dnsFast},
		{dnsPatience, failure, dnsFails, dnsFailing},
		{60 * time.Second, nil, dnsWorks, dnsSlow},
		{70 * time.Second, failure, dnsTolerated, dnsFast},
		{71 * time.Second, nil, dnsWorks, dnsSlow},
		{80 * time.Second, failure, dnsTolerated, dnsFast},
		{82 * time.Second, failure, dnsFails, dnsFailing},
		{90 * time.Second, nil, dnsWorks, dnsSlow},
	} {
		state, interval := h.add(step.err, t0.Add(step.after))
		assert.Check(t, is.Equal(state, step.state), step.after)
		assert.Check(t, is.Equal(interval, step.interval), step.after)
	}
}

// dnsServer answers each query with the function's result until the test ends.
func dnsServer(t *testing.T, answer func(*dnsmessage.Message)) netip.AddrPort {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	assert.NilError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, maxDNSAnswer)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if !assert.Check(t, m.Unpack(buf[:n])) {
				return
			}
			m.Response = true
			answer(&m)
			out, err := m.Pack()
			assert.Check(t, err)
			_, err = conn.WriteTo(out, from)
			assert.Check(t, err)
		}
	}()
	t.Cleanup(func() {
		assert.Check(t, conn.Close())
		<-done
	})
	return netip.MustParseAddrPort(conn.LocalAddr().String())
}

func TestResolveName(t *testing.T) {
	t.Parallel()
	found := func(m *dnsmessage.Message) {
		q := m.Questions[0]
		m.Answers = []dnsmessage.Resource{{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}, Body: &dnsmessage.AResource{A: [4]byte{10, 43, 0, 1}},
		}}
	}
	for want, answer := range map[string]func(*dnsmessage.Message){
		"":                              found,
		"the server answers ServerFail": func(m *dnsmessage.Message) { m.RCode = dnsmessage.RCodeServerFailure },
		"the server knows no address":   func(*dnsmessage.Message) {},
		"no answer from 127.0.0.1":      func(m *dnsmessage.Message) { m.ID++ }, // an answer to another query
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		if strings.HasPrefix(want, "no answer") {
			ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
		}
		err := resolveName(ctx, dnsServer(t, answer), "kubernetes.default.svc.cluster.local")
		cancel()
		if want == "" {
			assert.Check(t, err)
		} else {
			assert.Check(t, is.ErrorContains(err, want))
		}
	}
	closed := dnsServer(t, found)
	closed = netip.AddrPortFrom(closed.Addr(), 1) // no process listens there
	assert.ErrorContains(t, resolveName(t.Context(), closed, "a.b"), "the Service at 127.0.0.1 has no endpoint")
	assert.ErrorContains(t, resolveName(t.Context(), closed, strings.Repeat("a", 300)), "query aaa")
}

// TestDNSWatch checks the life of the condition: pending, true, false after some time, and true again.
func TestDNSWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var failure atomic.Pointer[error]
		fail := func(err error) { failure.Store(&err) }
		fail(errors.New("no answer"))
		unreachable := func() (*kubeapi.Client, error) {
			return kubeapi.NewForCluster(kubeapi.Cluster{Server: "https://127.0.0.1:1", CA: nil, Insecure: true}, kubeapi.Options{})
		}
		c, err := unreachable()
		assert.NilError(t, err)
		defer c.Close()
		w := &dnsWatch{
			address: netip.MustParseAddr("10.43.0.10"), name: "kubernetes.default.svc.cluster.local",
			serving: func(context.Context) (*kubeapi.Client, error) { return c, nil },
			resolve: func(context.Context, netip.AddrPort, string) error { return *failure.Load() },
		}
		hub := status.NewHub(status.Status{}, status.Options{})
		runConditions(t, hub, map[string]conditionWatch{status.ConditionClusterDNS: w})
		state := func(after time.Duration) status.Condition {
			time.Sleep(after)
			synctest.Wait()
			s := hub.Snapshot()
			return *s.Condition(status.ConditionClusterDNS)
		}
		got := state(time.Second)
		assert.Assert(t, got.Pending)
		assert.Equal(t, got.Message, "kubernetes.default.svc.cluster.local does not resolve: no answer")
		assert.Assert(t, !state(dnsPatience).Pending)
		fail(nil)
		assert.Assert(t, state(2*dnsFailing).OK)
		fail(errors.New("lost"))
		assert.Assert(t, state(dnsSlow).OK, "one lost query")
		assert.Assert(t, !state(2*dnsTolerance).OK)
	})
}

func dnsPod(name string, container corev1.ContainerStatus, conditions ...corev1.PodCondition) *corev1.Pod {
	container.Name = "coredns"
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: "vm"},
		Status: corev1.PodStatus{Conditions: conditions, ContainerStatuses: []corev1.ContainerStatus{container}},
	}
}

// TestPodProblem uses statuses as the kubelet writes them: for umask 027 (N1), an invalid Corefile, a missing image.
func TestPodProblem(t *testing.T) {
	t.Parallel()
	waiting := func(reason, message string) corev1.ContainerState {
		return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	}
	exited := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
		ExitCode: 1, Message: "/etc/coredns/custom/a.override:1 - Error during parsing: Unknown directive 'x'\nmaxprocs: Leaving GOMAXPROCS=2\n",
	}}
	deleted := dnsPod("d", corev1.ContainerStatus{})
	deleted.DeletionTimestamp = &metav1.Time{}
	for _, tc := range []struct {
		pod    *corev1.Pod
		want   string
		broken bool
	}{
		{dnsPod("a", corev1.ContainerStatus{Ready: true}, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}), "", false},
		{dnsPod("a", corev1.ContainerStatus{}, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/1 nodes are available"}),
			"pod a: 0/1 nodes are available", false},
		{dnsPod("a", corev1.ContainerStatus{State: waiting("ContainerCreating", "")}), "pod a: container coredns: ContainerCreating", false},
		{dnsPod("a", corev1.ContainerStatus{State: waiting("RunContainerError", "exec: permission denied")}),
			"pod a: container coredns: RunContainerError: exec: permission denied", true},
		{dnsPod("a", corev1.ContainerStatus{State: waiting("ImagePullBackOff", "back-off")}), "pod a: container coredns: ImagePullBackOff: back-off", true},
		{dnsPod("a", corev1.ContainerStatus{State: waiting("CrashLoopBackOff", "back-off 10s"), LastTerminationState: exited}),
			"pod a: container coredns: CrashLoopBackOff: back-off 10s; exited with code 1: " +
				"/etc/coredns/custom/a.override:1 - Error during parsing: Unknown directive 'x'", true},
		{dnsPod("a", corev1.ContainerStatus{State: exited}), "pod a: container coredns: exited with code 1: " +
			"/etc/coredns/custom/a.override:1 - Error during parsing: Unknown directive 'x'", true},
		{dnsPod("a", corev1.ContainerStatus{}, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, Message: "containers with unready status: [coredns]"}),
			"pod a: containers with unready status: [coredns]", false},
		{dnsPod("a", corev1.ContainerStatus{}), "pod a: not ready", false},
		{deleted, "pod d is being deleted", false},
	} {
		text, broken := podProblem(tc.pod)
		assert.Check(t, is.Equal(text, tc.want))
		assert.Check(t, is.Equal(broken, tc.broken), tc.want)
	}
}

// TestDNSCause checks that the condition names the cause of a failed query and has a fix.
func TestDNSCause(t *testing.T) {
	t.Parallel()
	const service = "/api/v1/namespaces/kube-system/services/kube-dns"
	const deployment = "/apis/apps/v1/namespaces/kube-system/deployments/coredns"
	at := func(ip string) any { return map[string]any{"spec": map[string]any{"clusterIP": ip}} }
	replicas := func(n int) any { return map[string]any{"spec": map[string]any{"replicas": n}} }
	readyPod := dnsPod("a", corev1.ContainerStatus{Ready: true}, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
	node := func(ready string) any {
		return map[string]any{"metadata": map[string]any{"name": "vm", "uid": "1"}, "status": map[string]any{
			"conditions": []any{map[string]any{"type": "Ready", "status": ready, "reason": "NodeStatusUnknown"}}}}
	}
	for _, tc := range []struct {
		name    string
		objects map[string]any
		pods    []*corev1.Pod
		reason  string
		message string
	}{
		{"Service deleted", nil, nil, reasonNoService, "the Service kube-system/kube-dns does not exist"},
		{"another address", map[string]any{service: at("10.43.0.99")}, nil, reasonAddress, "has the address 10.43.0.99, but pods use 10.43.0.10"},
		{"Deployment deleted", map[string]any{service: at("10.43.0.10")}, nil, reasonNoDeployment, "the Deployment kube-system/coredns does not exist"},
		{"no replicas", map[string]any{service: at("10.43.0.10"), deployment: replicas(0)}, nil, reasonNoReplicas, "has 0 replicas"},
		{"no pods", map[string]any{service: at("10.43.0.10"), deployment: replicas(1)}, nil, reasonNoPods, "has no pods"},
		{"not ready", map[string]any{service: at("10.43.0.10")}, []*corev1.Pod{dnsPod("a", corev1.ContainerStatus{})}, reasonPods, "pod a: not ready"},
		{"no Node", map[string]any{service: at("10.43.0.10")}, []*corev1.Pod{readyPod}, reasonNode, "pod a is on node vm, which does not exist"},
		{"dead Node", map[string]any{service: at("10.43.0.10"), "/api/v1/nodes/vm": node("Unknown")}, []*corev1.Pod{readyPod}, reasonNode,
			"pod a is on node vm, which is not ready: Ready is Unknown (NodeStatusUnknown)"},
		{"as it should be", map[string]any{service: at("10.43.0.10"), "/api/v1/nodes/vm": node("True")}, []*corev1.Pod{readyPod}, reasonNoAnswer,
			"name does not resolve: lost"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			api := &stubAPI{answer: func(r *http.Request) (int, any) {
				if o, ok := tc.objects[r.URL.Path]; ok {
					return http.StatusOK, o
				}
				return http.StatusNotFound, metav1.Status{Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound}
			}}
			c, err := api.start(t)()
			assert.NilError(t, err)
			d := &dnsDiagnoser{watch: &dnsWatch{address: netip.MustParseAddr("10.43.0.10"), name: "name", own: true}, client: c}
			d.setPods(tc.pods)
			got := d.cause(t.Context(), errors.New("lost"))
			assert.Equal(t, got.Reason, tc.reason)
			assert.Check(t, is.Contains(got.Message, tc.message))
			assert.Assert(t, len(got.Steps) > 0)
		})
	}
}

// TestDNSOfAnotherCluster checks that a worker has no condition if its cluster has no DNS.
func TestDNSOfAnotherCluster(t *testing.T) {
	t.Parallel()
	items := []any{}
	api := &stubAPI{answer: func(*http.Request) (int, any) { return http.StatusOK, map[string]any{"items": items} }}
	c, err := api.start(t)()
	assert.NilError(t, err)
	w := &dnsWatch{address: netip.MustParseAddr("10.96.0.10"), name: "name"}
	d := &dnsDiagnoser{watch: w, client: c}
	hub := status.NewHub(status.Status{}, status.Options{})
	report := conditionReporter{status.ConditionClusterDNS, hub}
	condition := func() *status.Condition {
		s := hub.Snapshot()
		return s.Condition(status.ConditionClusterDNS)
	}
	report.set(status.Condition{Pending: true})
	w.report(t.Context(), report, d, dnsStarting, errors.New("lost"))
	assert.Assert(t, condition() == nil)
	w.report(t.Context(), report, d, dnsWorks, nil)
	assert.Assert(t, condition().OK)
	w.report(t.Context(), report, d, dnsFails, errors.New("lost"))
	assert.Equal(t, condition().Reason, reasonNoService, "it existed before")
	items = []any{map[string]any{"metadata": map[string]any{"name": "dns"}}}
	w.report(t.Context(), report, d, dnsFails, errors.New("lost"))
	assert.Equal(t, condition().Message, "name does not resolve: lost")
	assert.Assert(t, len(condition().Steps) > 0)
}

// A pod that does not start is a warning while names are resolved.
func TestDNSWarning(t *testing.T) {
	t.Parallel()
	d := &dnsDiagnoser{watch: &dnsWatch{name: "name"}}
	assert.Assert(t, !d.working().Warning)
	d.setPods([]*corev1.Pod{dnsPod("b", corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}})})
	c := d.working()
	assert.Assert(t, c.OK && c.Warning)
	assert.Equal(t, c.Message, "names are resolved, but a pod of the DNS does not start: pod b: container coredns: CrashLoopBackOff")
}
