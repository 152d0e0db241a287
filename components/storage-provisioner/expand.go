package main

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// expander confirms larger sizes of volumes. The size of a volume is not enforced, so
// there is nothing else to do.
type expander struct {
	client  kubernetes.Interface
	volumes corelisters.PersistentVolumeLister
}

// expand confirms the size that a claim requests if it is larger than its volume. It
// changes the volume first, like Kubernetes' own controllers, so that an interrupted
// expansion continues.
func (e *expander) expand(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	want := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if claim.Status.Phase != corev1.ClaimBound || want.Cmp(claim.Status.Capacity[corev1.ResourceStorage]) <= 0 {
		return nil
	}
	volume, err := e.volumes.Get(claim.Spec.VolumeName)
	if err != nil {
		return fmt.Errorf("expand claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	if volume.Annotations[annotationProvisioner] != provisionerName || volume.Spec.ClaimRef == nil || volume.Spec.ClaimRef.UID != claim.UID {
		return nil
	}
	if want.Cmp(volume.Spec.Capacity[corev1.ResourceStorage]) > 0 {
		patch := sizePatch("spec", want, "capacity")
		if _, err := e.client.CoreV1().PersistentVolumes().Patch(ctx, volume.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("expand volume %s: %w", volume.Name, err)
		}
	}
	claims := e.client.CoreV1().PersistentVolumeClaims(claim.Namespace)
	if _, err := claims.Patch(ctx, claim.Name, types.MergePatchType, sizePatch("status", want, "capacity", "allocatedResources"), metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("expand claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return nil
}

// sizePatch returns the patch of an object that sets the size in these fields of spec or status.
func sizePatch(part string, size resource.Quantity, fields ...string) []byte {
	values := map[string]any{}
	for _, field := range fields {
		values[field] = map[string]string{string(corev1.ResourceStorage): size.String()}
	}
	patch, err := json.Marshal(map[string]any{part: values})
	if err != nil {
		panic(err) // cannot happen: strings
	}
	return patch
}
