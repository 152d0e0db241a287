package kubeapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// polling returns the delays between two checks of whether an object is gone or can be created.
func polling() wait.Backoff { return wait.Backoff{Duration: 200 * time.Millisecond} }

// NodeNames lists the names of the Node objects.
func (c nodes) NodeNames(ctx context.Context) ([]string, error) {
	var list metav1.PartialObjectMetadataList
	if err := c.do(ctx, request{method: http.MethodGet, path: nodesPath}, &list); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	var names []string
	for _, n := range list.Items {
		names = append(names, n.Name)
	}
	return names, nil
}

// CreateNamespace creates a namespace whose name begins with prefix and whose pods may be privileged. It returns the name.
func (c objects) CreateNamespace(ctx context.Context, prefix string) (string, error) {
	ns := corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{
		GenerateName: prefix, Labels: map[string]string{"pod-security.kubernetes.io/enforce": "privileged"},
	}}
	err := c.create(ctx, namespacesPath, &ns)
	if err != nil {
		return "", fmt.Errorf("create namespace: %w", err)
	}
	return ns.Name, nil
}

// RemoveNamespace deletes a namespace with its contents and waits until it is gone or ctx ends.
func (c objects) RemoveNamespace(ctx context.Context, name string) error {
	path := namespacesPath + "/" + url.PathEscape(name)
	method, delays := http.MethodDelete, polling()
	for {
		err := c.do(ctx, request{method: method, path: path}, nil)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil {
			method = http.MethodGet
		}
		if !pause(ctx, &delays, nil) {
			return timedOut(ctx, "wait until namespace "+name+" is gone", err)
		}
	}
}

// CreatePod creates a pod. In a new namespace it waits until the control plane has created the service account.
func (c objects) CreatePod(ctx context.Context, pod *corev1.Pod) error {
	path := namespacesPath + "/" + url.PathEscape(pod.Namespace) + "/pods"
	delays := polling()
	for {
		err := c.create(ctx, path, pod)
		if err == nil {
			return nil
		}
		if code(err) != http.StatusForbidden || !strings.Contains(err.Error(), "service account") || !pause(ctx, &delays, nil) {
			return fmt.Errorf("create pod %s: %w", pod.Name, err)
		}
	}
}

// ReadPod returns a Pod object.
func (c objects) ReadPod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	var pod corev1.Pod
	path := namespacesPath + "/" + url.PathEscape(namespace) + "/pods/" + url.PathEscape(name)
	if err := c.do(ctx, request{method: http.MethodGet, path: path}, &pod); err != nil {
		return nil, fmt.Errorf("read pod %s: %w", name, err)
	}
	return &pod, nil
}

const namespacesPath = "/api/v1/namespaces"

// create posts an object and decodes the response into it.
func (c *conn) create(ctx context.Context, path string, object any) error {
	body, err := json.Marshal(object)
	if err != nil {
		return err
	}
	return c.do(ctx, request{
		method: http.MethodPost, path: path, contentType: mimeJSON, body: body,
		query: url.Values{"fieldManager": {FieldManager}},
	}, object)
}
