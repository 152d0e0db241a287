package kubeapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const nodeLeasesPath = "/apis/coordination.k8s.io/v1/namespaces/" + corev1.NamespaceNodeLease + "/leases"

// NodeLeaseRenewed returns the last time when the kubelet of a node renewed its Lease, by that node's clock; zero if there
// is no Lease. Only the node itself may write it (admission plugin NodeRestriction).
func (c nodes) NodeLeaseRenewed(ctx context.Context, nodeName string) (time.Time, error) {
	var lease coordinationv1.Lease
	err := c.do(ctx, request{method: http.MethodGet, path: nodeLeasesPath + "/" + url.PathEscape(nodeName)}, &lease)
	switch {
	case apierrors.IsNotFound(err):
		return time.Time{}, nil
	case err != nil:
		return time.Time{}, fmt.Errorf("read the lease of node %s: %w", nodeName, err)
	case lease.Spec.RenewTime == nil:
		return time.Time{}, nil
	}
	return lease.Spec.RenewTime.Time, nil
}

// RenewNodeLease writes the renew time into the Lease of a node, as its kubelet does, and creates the Lease if it does not
// exist. The Lease is deleted together with the Node object.
func (c nodes) RenewNodeLease(ctx context.Context, node *corev1.Node, at time.Time) error {
	now := metav1.NewMicroTime(at)
	body, err := json.Marshal(map[string]any{"spec": map[string]any{"renewTime": now}})
	if err == nil {
		err = c.do(ctx, request{
			method: http.MethodPatch, path: nodeLeasesPath + "/" + url.PathEscape(node.Name), contentType: mimeMergePatch, body: body,
		}, nil)
	}
	if apierrors.IsNotFound(err) {
		err = c.create(ctx, nodeLeasesPath, &coordinationv1.Lease{
			TypeMeta: metav1.TypeMeta{APIVersion: "coordination.k8s.io/v1", Kind: "Lease"},
			ObjectMeta: metav1.ObjectMeta{
				Name: node.Name, Namespace: corev1.NamespaceNodeLease,
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}},
			},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: &node.Name, RenewTime: &now},
		})
	}
	if err != nil {
		return fmt.Errorf("renew the lease of node %s: %w", node.Name, err)
	}
	return nil
}
