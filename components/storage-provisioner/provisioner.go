package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
)

// provisionerName is the provisioner of the storage classes that this program serves.
const provisionerName = "rootlessnode.dev/local"

// provisioner creates and removes volumes for the controller.
type provisioner struct {
	options options
	dir     *directory
	events  record.EventRecorder
}

// Provision creates the directory of a volume. It reports everything that it does not
// support in one error, which becomes an event of the claim.
func (p *provisioner) Provision(_ context.Context, o controller.ProvisionOptions) (*corev1.PersistentVolume, controller.ProvisioningState, error) {
	if err := p.supports(o); err != nil {
		return nil, controller.ProvisioningFinished, err
	}
	name, err := volumeDir(o.PVC.Namespace, o.PVC.Name, o.PVName)
	if err != nil {
		return nil, controller.ProvisioningFinished, err
	}
	path, err := p.dir.create(name)
	if err != nil {
		return nil, controller.ProvisioningFinished, err
	}
	size := o.PVC.Spec.Resources.Requests[corev1.ResourceStorage]
	p.warnOfSize(o.PVC, size)
	return p.volume(o, path, size), controller.ProvisioningFinished, nil
}

// supports returns an error that names everything in the claim and its class that cannot be provided.
func (p *provisioner) supports(o controller.ProvisionOptions) error {
	var errs []error
	if len(o.StorageClass.Parameters) > 0 {
		keys := slices.Sorted(maps.Keys(o.StorageClass.Parameters))
		errs = append(errs, fmt.Errorf("storage class %s: unknown parameters: %s", o.StorageClass.Name, strings.Join(keys, ", ")))
	}
	if len(o.StorageClass.MountOptions) > 0 {
		// The kubelet would apply them to its own mount, but runc resets them for the container.
		errs = append(errs, fmt.Errorf("storage class %s: mountOptions are not supported", o.StorageClass.Name))
	}
	if o.PVC.Spec.Selector != nil {
		errs = append(errs, errors.New("spec.selector: not supported by dynamic provisioning; set storageClassName to \"\" to select an existing volume"))
	}
	if o.PVC.Spec.DataSource != nil || o.PVC.Spec.DataSourceRef != nil {
		errs = append(errs, errors.New("spec.dataSource: copies of volumes and snapshots are not supported"))
	}
	if o.SelectedNodeName != "" && o.SelectedNodeName != p.options.node {
		errs = append(errs, fmt.Errorf("volumes exist only on node %s, but the pod is to run on %s; set allowedTopologies in storage class %s to the label %s=%s",
			p.options.node, o.SelectedNodeName, o.StorageClass.Name, p.options.label, p.options.labelValue))
	}
	return errors.Join(errs...)
}

// warnOfSize creates an event if the disk has less space than a claim requests.
// Sizes are not enforced, so the volume can be used nevertheless.
func (p *provisioner) warnOfSize(claim *corev1.PersistentVolumeClaim, size resource.Quantity) {
	free, err := p.dir.free()
	if err != nil || size.CmpInt64(free) <= 0 {
		return
	}
	p.events.Eventf(claim, corev1.EventTypeWarning, "LessSpaceThanRequested",
		"the claim requests %s, but the disk of the node has %s left; the size of volumes is not enforced", size.String(), inMebibytes(free).String())
}

func (p *provisioner) volume(o controller.ProvisionOptions, path string, size resource.Quantity) *corev1.PersistentVolume {
	mode := corev1.PersistentVolumeFilesystem
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: o.PVName},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: size},
			AccessModes:                   o.PVC.Spec.AccessModes,
			PersistentVolumeReclaimPolicy: *o.StorageClass.ReclaimPolicy, // the API server sets a default
			VolumeMode:                    &mode,
			// With this type the kubelet applies fsGroup, which it does not do for hostPath.
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: p.options.label, Operator: corev1.NodeSelectorOpIn, Values: []string{p.options.labelValue},
				}},
			}}}},
		},
	}
}

// Delete removes the directory of a volume. The volume is any object of the API with
// this program's name, so its path is not trusted.
func (p *provisioner) Delete(_ context.Context, volume *corev1.PersistentVolume) error {
	if volume.Spec.Local == nil {
		return fmt.Errorf("volume %s has no local path; it was not created by this node", volume.Name)
	}
	return p.dir.remove(volume.Spec.Local.Path, volume.Name)
}

// inMebibytes returns a number of bytes, rounded down to mebibytes so that it is short.
func inMebibytes(bytes int64) *resource.Quantity {
	const mebibyte = 1 << 20
	return resource.NewQuantity(bytes/mebibyte*mebibyte, resource.BinarySI)
}
