package kubeapi

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	corev1 "k8s.io/api/core/v1"
)

// maxList is the maximum number of objects that the List methods return.
const maxList = 500

// ListPods returns pods of all namespaces, ListServices Services, ListEvents Events and ListSecrets Secrets. They return up to 500 objects
// in the order of the API server.
func (c workloads) ListPods(ctx context.Context) ([]corev1.Pod, error) {
	var list corev1.PodList
	err := c.list(ctx, podsPath, &list)
	return list.Items, err
}

func (c workloads) ListServices(ctx context.Context) ([]corev1.Service, error) {
	var list corev1.ServiceList
	err := c.list(ctx, servicesPath, &list)
	return list.Items, err
}

func (c workloads) ListEvents(ctx context.Context) ([]corev1.Event, error) {
	var list corev1.EventList
	err := c.list(ctx, "/api/v1/events", &list)
	return list.Items, err
}

func (c workloads) ListSecrets(ctx context.Context) ([]corev1.Secret, error) {
	var list corev1.SecretList
	err := c.list(ctx, "/api/v1/secrets", &list)
	return list.Items, err
}

// list reads a list of objects.
func (c *conn) list(ctx context.Context, path string, into any) error {
	err := c.do(ctx, request{method: http.MethodGet, path: path, query: url.Values{"limit": {strconv.Itoa(maxList)}}}, into)
	if err != nil {
		return fmt.Errorf("list %s: %w", path, err)
	}
	return nil
}
