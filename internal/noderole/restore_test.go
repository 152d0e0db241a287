package noderole

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	corev1 "k8s.io/api/core/v1"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

func TestAddonChanges(t *testing.T) {
	t.Parallel()
	id := kubeapi.ObjectID{Kind: "Deployment", Namespace: "kube-system", Name: "coredns"}
	at := func(version string, generation int64) kubeapi.ObjectState {
		return kubeapi.ObjectState{ObjectID: id, Version: version, Generation: generation}
	}
	changes := newAddonChanges([]kubeapi.ObjectState{at("1", 1)}, nil)
	assert.Equal(t, len(changes.arrived), 0)
	needed := func(want bool, objects int) {
		t.Helper()
		found := changes.take()
		assert.Equal(t, found.needed(), want)
		assert.Equal(t, len(found.foreign), objects)
	}
	changes.setObject(at("1", 1)) // the first list of the watch
	assert.Equal(t, len(changes.arrived), 1)
	needed(false, 0)
	changes.setObject(at("2", 1)) // only the status changed
	needed(false, 0)
	changes.setObject(at("3", 2))
	needed(true, 1)
	changes.done([]kubeapi.ObjectState{at("4", 3)}, nil, nil)
	changes.setObject(at("4", 3)) // the event of the restoration
	needed(false, 0)
	changes.setObject(at("", 0))
	changes.setObject(at("5", 1)) // deleted and created by another client
	needed(true, 1)
	changes.done([]kubeapi.ObjectState{at("5", 1)}, nil, context.DeadlineExceeded)
	needed(true, 0) // it is retried
	custom := map[string]string{"a.override": "log"}
	changes.done(nil, nil, nil)
	changes.setCustom(custom)
	needed(true, 0)
	changes.done(nil, custom, nil)
	needed(false, 0)
}

// TestRestore checks that a deleted object is applied again together with the user's DNS configuration, and reported.
func TestRestore(t *testing.T) {
	t.Parallel()
	api := &stubAPI{answer: func(r *http.Request) (int, any) {
		if strings.HasSuffix(r.URL.Path, "/pods") {
			failed := corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}}
			return http.StatusOK, map[string]any{"items": []any{dnsPod("failed", failed), dnsPod("starting", corev1.ContainerStatus{})}}
		}
		return http.StatusOK, map[string]any{"metadata": map[string]any{"resourceVersion": "7"}}
	}}
	client := api.start(t)
	c, err := client()
	assert.NilError(t, err)
	cfg := testConfig()
	hub := status.NewHub(status.Status{}, status.Options{})
	defer hub.Close()
	authority := filepath.Join(t.TempDir(), "ca.crt")
	assert.NilError(t, os.WriteFile(authority, []byte("a certificate\n"), 0o600))
	a := &clusterAddons{
		env: component.Env{Config: cfg, NameServers: []string{"10.0.2.3"}}, authority: authority, client: client, log: silentLog(), hub: hub,
	}
	_, applied, err := a.apply(t.Context(), c, nil)
	assert.NilError(t, err)
	first := len(api.requests)
	changes := newAddonChanges(applied, nil)
	changes.setCustom(map[string]string{"a.override": "log"})
	for _, o := range applied {
		if o.Name == "kube-dns" {
			changes.setObject(kubeapi.ObjectState{ObjectID: o.ObjectID})
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); a.restore(ctx, c, changes) }()
	e := <-hub.Subscribe(t.Context(), true)
	cancel()
	<-done
	assert.Equal(t, e.Component+": "+e.Reason, "addons: restored Service kube-system/kube-dns, which was deleted")
	assert.Equal(t, len(api.requests), 2*first+2)
	assert.Equal(t, api.requests[2*first+1], "DELETE /api/v1/namespaces/kube-system/pods/failed ", "the new configuration may be valid")
	deployment := func(requests []string) string {
		for _, r := range requests {
			if strings.Contains(r, "/deployments/") {
				return r
			}
		}
		return ""
	}
	before, after := deployment(api.requests[:first]), deployment(api.requests[first:])
	assert.Assert(t, before != after, "the pods are not replaced")
	assert.Assert(t, strings.Contains(after, `"app.kubernetes.io/managed-by":"rootlessnode"`))
	assert.Assert(t, !strings.Contains(after, `"replicas"`))
}
