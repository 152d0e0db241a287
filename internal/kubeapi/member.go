package kubeapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// EnsureNode creates the Node object if it does not exist and reports whether it did. In clusters of rootlessnode, only the
// control plane may create Nodes; a node then gets the refusal as the error if its Node object does not exist. In other
// clusters, a node may create its own Node object (admission plugin NodeRestriction) with the labels that a kubelet may set.
func (c nodes) EnsureNode(ctx context.Context, node *corev1.Node) (created bool, err error) {
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

// DeleteNode deletes the Node object name. It succeeds if the object does not exist.
func (c nodes) DeleteNode(ctx context.Context, name string) error {
	err := c.do(ctx, request{method: http.MethodDelete, path: nodePath(name)}, nil)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete node %s: %w", name, err)
	}
	return nil
}

// SetNodeAddresses replaces the addresses of the Node object name. The caller must call it again when they change, because a
// kubelet with an external cloud provider does not update them.
func (c nodes) SetNodeAddresses(ctx context.Context, name string, addresses []corev1.NodeAddress) error {
	if addresses == nil {
		addresses = []corev1.NodeAddress{} // null would remove the field
	}
	body, err := json.Marshal(map[string]any{"status": map[string]any{"addresses": addresses}})
	if err == nil {
		// A merge patch replaces a list; a strategic patch would merge it by type and keep addresses that are not named.
		err = c.do(ctx, request{
			method: http.MethodPatch, path: nodePath(name) + "/status", contentType: mimeMergePatch, body: body,
		}, nil)
	}
	if err != nil {
		return fmt.Errorf("set the addresses of node %s: %w", name, err)
	}
	return nil
}

// Nodes lists all Node objects.
func (c nodes) Nodes(ctx context.Context) ([]corev1.Node, error) {
	var list corev1.NodeList
	if err := c.do(ctx, request{method: http.MethodGet, path: nodesPath}, &list); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	return list.Items, nil
}
