package kubeapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// EnsureNode creates the Node object and reports whether it did: one that exists already stays as it is. In a cluster of
// rootlessnode's only its control plane may create a Node. A node gets the refusal as the error if there is no Node object
// of its name. Elsewhere a node may create its own (admission plugin NodeRestriction) with labels that a kubelet may set.
func (c *Client) EnsureNode(ctx context.Context, node *corev1.Node) (created bool, err error) {
	wanted := *node
	wanted.APIVersion, wanted.Kind = "v1", "Node"
	err = c.create(ctx, nodesPath, &wanted)
	if apierrors.IsAlreadyExists(err) {
		return false, nil
	}
	if apierrors.IsForbidden(err) {
		if existing, getErr := c.Node(ctx, node.Name); getErr == nil && existing != nil {
			return false, nil
		}
	}
	if err != nil {
		return false, fmt.Errorf("create node %s: %w", node.Name, err)
	}
	return true, nil
}

// DeleteNode deletes the Node object name. One that does not exist is no error.
func (c *Client) DeleteNode(ctx context.Context, name string) error {
	err := c.do(ctx, request{method: http.MethodDelete, path: nodePath(name)}, nil)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove node %s: %w", name, err)
	}
	return nil
}

// SetNodeAddresses gives the Node object name exactly these addresses. Whoever does it keeps doing it when they change: a
// kubelet with an external cloud provider leaves them alone.
func (c *Client) SetNodeAddresses(ctx context.Context, name string, addresses []corev1.NodeAddress) error {
	if addresses == nil {
		addresses = []corev1.NodeAddress{} // null would mean: remove the field
	}
	body, err := json.Marshal(map[string]any{"status": map[string]any{"addresses": addresses}})
	if err == nil {
		// A merge patch replaces a list; a strategic one would merge this one by type, and keep what is not named.
		err = c.do(ctx, request{
			method: http.MethodPatch, path: nodePath(name) + "/status", contentType: mimeMergePatch, body: body,
		}, nil)
	}
	if err != nil {
		return fmt.Errorf("set the addresses of node %s: %w", name, err)
	}
	return nil
}

// Nodes lists all Node objects once.
func (c *Client) Nodes(ctx context.Context) ([]corev1.Node, error) {
	var list corev1.NodeList
	if err := c.do(ctx, request{method: http.MethodGet, path: nodesPath}, &list); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	return list.Items, nil
}
