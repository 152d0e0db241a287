package noderole

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/kubelet"
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/specfilter"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/portfwd"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

func TestGivenEnv(t *testing.T) {
	t.Parallel()
	cfg := testConfig()
	h := layout.HandoverInfo{Network: layout.NetworkInfo{IP: "10.0.2.100", DNS: []string{"10.0.2.3"}}}
	binary := programs{dirs: []string{"/c"}, nodeName: "a"}.binary
	e, err := givenEnv(cfg, h, netip.Addr{}, netip.Addr{}, "/run/n", binary)
	assert.NilError(t, err)
	assert.Equal(t, e.APIServerURL, "https://127.0.0.1:6443")
	assert.DeepEqual(t, e.NameServers, h.Network.DNS)
	assert.Equal(t, e.NodeIPv6+e.PublicIP, "")
	assert.Equal(t, e.BinDir("runc"), "/c/runc")

	cfg.Join.Server, cfg.Network.NameServers = "https://192.0.2.7:6443", []string{"192.0.2.2"}
	e, err = givenEnv(cfg, h, netip.MustParseAddr("fd00::2"), netip.MustParseAddr("192.0.2.8"), "/run/n", binary)
	assert.NilError(t, err)
	assert.Equal(t, e.APIServerURL, cfg.Join.Server)
	assert.DeepEqual(t, e.NameServers, cfg.Network.NameServers)
	assert.Equal(t, e.NodeIPv6+" "+e.PublicIP, "fd00::2 192.0.2.8")
}

func TestOCIRuntime(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	env := component.Env{BinDir: programs{dirs: []string{dir}, nodeName: "a"}.binary, Controllers: specfilter.Missing(nil)}
	path, err := ociRuntime(env)
	assert.NilError(t, err)
	assert.Equal(t, path, filepath.Join(dir, "runc"))
	env.Controllers = env.Controllers[1:]
	_, err = ociRuntime(env)
	assert.ErrorIs(t, err, errdefs.ErrPreflight)
	assert.NilError(t, os.WriteFile(filepath.Join(dir, shimProgram), nil, 0o755))
	path, err = ociRuntime(env)
	assert.NilError(t, err)
	assert.Equal(t, path, filepath.Join(dir, shimProgram))
}

func TestEventRecorder(t *testing.T) {
	t.Parallel()
	api := &stubAPI{answer: func(*http.Request) (int, any) { return http.StatusCreated, map[string]any{} }}
	r := &eventRecorder{client: api.start(t), host: "node-a", timeout: time.Minute, log: logrus.New()}
	r.recordPort(portfwd.Event{Owner: portfwd.Owner{Kind: portfwd.KindStatic, Name: "api"}, Reason: "PortForwarded"})
	r.wait()
	assert.Equal(t, len(api.requests), 0, "a static forward has no object")
	r.recordPort(portfwd.Event{Owner: portfwd.Owner{Kind: "Service", Namespace: "default", Name: "web"}, Reason: "PortFailed", Warning: true})
	r.wait()
	assert.Equal(t, len(api.requests), 1)
	for _, text := range []string{"PortFailed", "Warning", "node-a", `"web"`} {
		assert.Check(t, is.Contains(api.requests[0], text))
	}
}

// TestNodeLabels checks that the label of an earlier run is removed and the current ones are set.
func TestNodeLabels(t *testing.T) {
	t.Parallel()
	api := &stubAPI{answer: func(*http.Request) (int, any) { return http.StatusOK, map[string]any{} }}
	cfg := testConfig()
	o := &nodeObject{env: component.Env{Config: cfg}, client: api.start(t)}
	c, err := o.client()
	assert.NilError(t, err)
	labels := map[string]string{kubelet.LabelUnenforced: "memory"}
	assert.NilError(t, o.label(t.Context(), c, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: labels}}))
	assert.Equal(t, len(api.requests), 1)
	assert.Check(t, strings.HasPrefix(api.requests[0], "PATCH /api/v1/nodes/"+cfg.NodeName))
	assert.Check(t, is.Contains(api.requests[0], `"`+kubelet.LabelUnenforced+`":null`))
	for _, role := range []string{roleControlPlane, roleWorker} {
		assert.Check(t, is.Contains(api.requests[0], `"`+role+`":""`))
	}
	labels = map[string]string{roleControlPlane: "", roleWorker: "the user's value"}
	assert.NilError(t, o.label(t.Context(), c, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: labels}}))
	for _, request := range api.requests[1:] {
		assert.Check(t, !strings.Contains(request, "node-role"), "the user's value is kept: %s", request)
	}
	assert.NilError(t, o.recordUID(&corev1.Node{}), "a control plane has no record of a join")
}

func TestCheckReadAccess(t *testing.T) {
	t.Parallel()
	allowed := true
	api := &stubAPI{answer: func(*http.Request) (int, any) {
		return http.StatusCreated, map[string]any{"status": map[string]any{"allowed": allowed}}
	}}
	client := api.start(t)
	j := &joiner{env: component.Env{Config: testConfig()}, client: client}
	c, err := client()
	assert.NilError(t, err)
	assert.NilError(t, j.checkReadAccess(t.Context(), c))
	allowed = false
	assert.ErrorContains(t, j.checkReadAccess(t.Context(), c), "list nodes: nodes of the cluster are not allowed to list this resource")
}

func TestPodsProgress(t *testing.T) {
	t.Parallel()
	hub := status.NewHub(status.Status{}, status.Options{})
	defer hub.Close()
	p := &podsProgress{hub: hub}
	for state, want := range map[status.ComponentState]string{status.Ready: "", status.Stopping: "web"} {
		hub.SetComponent(status.Component{Name: unitPods, State: state}, nil)
		p.set("web")
		s := hub.Snapshot()
		assert.Equal(t, s.Component(unitPods).Reason, want)
	}
	assert.Equal(t, p.text, "web", "for the transition")
}

// TestForwarderWithoutDriver checks that ports.driver none only waits for the end of the node.
func TestForwarderWithoutDriver(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	assert.NilError(t, (&portForwarder{driver: config.DriverNone}).Run(ctx, cancel))
	assert.ErrorIs(t, ctx.Err(), context.Canceled, "it was ready")
}

// TestClientOfSources checks that sources use the client only when the API server is ready.
func TestClientOfSources(t *testing.T) {
	t.Parallel()
	stopped := func(context.Context) (*kubeapi.Client, error) { return nil, context.Canceled }
	early := errors.New("the addresses of the last run are still known")
	current := func(context.Context) (*kubeapi.Client, error) { return nil, early }
	o := portSources(testConfig(), layout.Runtime{}, stopped, current)
	assert.ErrorIs(t, o.Source.Run(t.Context(), nil), context.Canceled)
	assert.ErrorIs(t, o.Pods.Run(t.Context(), nil), early)
	assert.ErrorIs(t, o.Endpoints.Run(t.Context(), nil, nil), early)
	assert.ErrorIs(t, o.Publisher.PublishIngress(t.Context(), portfwd.Service{}, nil), context.Canceled)
}
