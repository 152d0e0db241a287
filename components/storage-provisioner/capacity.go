package main

import (
	"context"
	"errors"
	"fmt"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// capacityNamespace is the namespace of the objects with the free space.
const capacityNamespace = "kube-system"

// capacityReporter reports the free space of the disk in a CSIStorageCapacity for each
// class. There is no CSIDriver object, because the scheduler would then keep pods with
// claims for more space waiting. The size of volumes is not enforced, so such pods can run.
type capacityReporter struct {
	client  kubernetes.Interface
	options options
	classes func() []*storagev1.StorageClass
	free    func() (int64, error)
	// reported is the free space in the objects by class.
	reported map[string]int64
}

// report updates the objects whose value differs by more than one percent.
func (r *capacityReporter) report(ctx context.Context) error {
	const tolerance = 100
	free, err := r.free()
	if err != nil {
		return err
	}
	var errs []error
	for _, class := range r.classes() {
		if class.Provisioner != provisionerName {
			continue
		}
		last, known := r.reported[class.Name]
		if known && max(last-free, free-last) <= last/tolerance {
			continue
		}
		if err := r.write(ctx, class, inMebibytes(free)); err != nil {
			errs = append(errs, fmt.Errorf("report the free space for storage class %s: %w", class.Name, err))
			continue
		}
		r.reported[class.Name] = free
	}
	return errors.Join(errs...)
}

func (r *capacityReporter) write(ctx context.Context, class *storagev1.StorageClass, free *resource.Quantity) error {
	api := r.client.StorageV1().CSIStorageCapacities(capacityNamespace)
	want := &storagev1.CSIStorageCapacity{
		ObjectMeta: metav1.ObjectMeta{Name: class.Name, OwnerReferences: []metav1.OwnerReference{{
			APIVersion: storagev1.SchemeGroupVersion.String(), Kind: "StorageClass", Name: class.Name, UID: class.UID,
		}}},
		StorageClassName: class.Name,
		NodeTopology:     &metav1.LabelSelector{MatchLabels: map[string]string{r.options.label: r.options.labelValue}},
		Capacity:         free,
	}
	now, err := api.Get(ctx, class.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = api.Create(ctx, want, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	want.ResourceVersion = now.ResourceVersion
	_, err = api.Update(ctx, want, metav1.UpdateOptions{})
	return err
}
