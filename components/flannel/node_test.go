package main

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"

	"gotest.tools/v3/assert"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func node(name, podCIDR string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDR: podCIDR}}
}

func TestWaitPodCIDR(t *testing.T) {
	client := fake.NewClientset(node("other", "10.244.0.0/24"))
	nodes := client.CoreV1().Nodes()
	done := make(chan error, 1)
	go func() { done <- waitPodCIDR(t.Context(), client, "mine") }()

	// Another node, or a node without a pod CIDR, must not end the wait, whatever
	// the order of the watch and these calls is.
	_, err := nodes.Create(t.Context(), node("mine", ""), metav1.CreateOptions{})
	assert.NilError(t, err)
	select {
	case err := <-done:
		t.Fatalf("ended without a pod CIDR: %v", err)
	default:
	}
	_, err = nodes.Update(t.Context(), node("mine", "10.244.1.0/24"), metav1.UpdateOptions{})
	assert.NilError(t, err)
	assert.NilError(t, <-done)
}

func TestWaitPodCIDREndsWithContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := waitPodCIDR(ctx, fake.NewClientset(), "mine")
	assert.ErrorIs(t, err, context.Canceled)
}

func TestHealth(t *testing.T) {
	h := &health{}
	status := func(path string) int {
		w := httptest.NewRecorder()
		h.handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Code
	}
	assert.Equal(t, status("/healthz"), http.StatusOK)
	assert.Equal(t, status("/readyz"), http.StatusServiceUnavailable)
	h.setReady()
	assert.Equal(t, status("/readyz"), http.StatusOK)
	assert.Equal(t, status("/"), http.StatusNotFound)
}
