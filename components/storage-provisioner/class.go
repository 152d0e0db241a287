package main

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

const (
	// className is the storage class that this program creates.
	className = "rootlessnode"
	// annotationDefault marks a storage class as the default (Kubernetes).
	annotationDefault = "storageclass.kubernetes.io/is-default-class"
	annotationTrue    = "true"
)

// classKeeper keeps the storage class called className.
type classKeeper struct {
	client  kubernetes.Interface
	options options
	// classes returns all storage classes.
	classes func() []*storagev1.StorageClass
}

// reconcile creates the class if it does not exist. The class is the default one unless
// the user has another default class, or has set the annotation to "false". All other
// changes by the user remain.
func (k *classKeeper) reconcile(ctx context.Context) error {
	var own *storagev1.StorageClass
	otherDefault := false
	for _, c := range k.classes() {
		switch {
		case c.Name == className:
			own = c
		case c.Annotations[annotationDefault] == annotationTrue:
			otherDefault = true
		}
	}
	api := k.client.StorageV1().StorageClasses()
	if own == nil {
		_, err := api.Create(ctx, k.class(!otherDefault), metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create storage class %s: %w", className, err)
		}
		return nil
	}
	value, set := own.Annotations[annotationDefault]
	if own.Provisioner != provisionerName || set && value != annotationTrue || set != otherDefault {
		return nil
	}
	if _, err := api.Patch(ctx, className, types.MergePatchType, defaultPatch(!otherDefault), metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("change storage class %s: %w", className, err)
	}
	return nil
}

// defaultPatch returns the patch that makes a class the default one, or removes the annotation.
func defaultPatch(isDefault bool) []byte {
	var value any
	if isDefault {
		value = annotationTrue
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{annotationDefault: value}}})
	if err != nil {
		panic(err) // cannot happen: strings and nil
	}
	return patch
}

func (k *classKeeper) class(isDefault bool) *storagev1.StorageClass {
	reclaim, binding, expand := corev1.PersistentVolumeReclaimDelete, storagev1.VolumeBindingWaitForFirstConsumer, true
	c := &storagev1.StorageClass{
		ObjectMeta:           metav1.ObjectMeta{Name: className},
		Provisioner:          provisionerName,
		ReclaimPolicy:        &reclaim,
		VolumeBindingMode:    &binding,
		AllowVolumeExpansion: &expand,
		// In a cluster with several nodes, pods with such volumes run on this one.
		AllowedTopologies: []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{
			Key: k.options.label, Values: []string{k.options.labelValue},
		}}}},
	}
	if isDefault {
		c.Annotations = map[string]string{annotationDefault: annotationTrue}
	}
	return c
}
