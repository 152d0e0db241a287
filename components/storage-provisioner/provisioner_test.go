package main

import (
	"os"
	"testing"

	"gotest.tools/v3/assert"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller"
)

func request(size string) corev1.VolumeResourceRequirements {
	return corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}}
}

func claim(size string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data", UID: claimUID},
		Spec:       corev1.PersistentVolumeClaimSpec{Resources: request(size), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}},
	}
}

func provisionOptions(size string) controller.ProvisionOptions {
	reclaim := corev1.PersistentVolumeReclaimRetain
	c := class("c", provisionerName, "")
	c.ReclaimPolicy = &reclaim
	return controller.ProvisionOptions{StorageClass: c, PVName: volume, PVC: claim(size), SelectedNodeName: "n1"}
}

func TestProvisionAndDelete(t *testing.T) {
	events := record.NewFakeRecorder(1)
	p := &provisioner{options: testOptions, dir: newDirectory(t), events: events}
	pv, _, err := p.Provision(t.Context(), provisionOptions("1Mi"))
	assert.NilError(t, err)
	assert.Equal(t, pv.Name, volume)
	assert.Equal(t, pv.Spec.PersistentVolumeReclaimPolicy, corev1.PersistentVolumeReclaimRetain)
	assert.DeepEqual(t, pv.Spec.AccessModes, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany})
	_, err = os.Stat(pv.Spec.Local.Path)
	assert.NilError(t, err)
	assert.NilError(t, p.Delete(t.Context(), pv))
	_, err = os.Stat(pv.Spec.Local.Path)
	assert.Assert(t, os.IsNotExist(err))

	pv.Spec.Local = nil
	pv.Spec.HostPath = &corev1.HostPathVolumeSource{Path: "/etc"}
	assert.ErrorContains(t, p.Delete(t.Context(), pv), "has no local path")

	assert.Equal(t, len(events.Events), 0)
	_, _, err = p.Provision(t.Context(), provisionOptions("1Ei"))
	assert.NilError(t, err)
	assert.Equal(t, len(events.Events), 1, "no event for a claim that is larger than the disk")
}

// TestProvisionRefuses checks that all reasons are reported together.
func TestProvisionRefuses(t *testing.T) {
	p := &provisioner{options: testOptions, dir: newDirectory(t), events: record.NewFakeRecorder(0)}
	o := provisionOptions("1Mi")
	o.StorageClass.Parameters = map[string]string{"pathPattern": "../../etc"}
	o.StorageClass.MountOptions = []string{"noexec"}
	o.PVC.Spec.Selector = &metav1.LabelSelector{}
	o.PVC.Spec.DataSource = &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "x"}
	o.SelectedNodeName = "n2"
	_, _, err := p.Provision(t.Context(), o)
	for _, want := range []string{"unknown parameters: pathPattern", "mountOptions", "spec.selector", "spec.dataSource", "only on node n1", "example.com/volumes=here"} {
		assert.ErrorContains(t, err, want)
	}
}

func TestExpand(t *testing.T) {
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: volume, Annotations: map[string]string{annotationProvisioner: provisionerName}},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			ClaimRef: &corev1.ObjectReference{Namespace: "shop", Name: "data", UID: claimUID},
		},
	}
	for name, test := range map[string]struct {
		change func(*corev1.PersistentVolume, *corev1.PersistentVolumeClaim)
		want   string
	}{
		"larger": {func(*corev1.PersistentVolume, *corev1.PersistentVolumeClaim) {}, "2Gi"},
		"interrupted": {func(v *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) {
			v.Spec.Capacity[corev1.ResourceStorage] = resource.MustParse("2Gi")
		}, "2Gi"},
		"not bound": {func(_ *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) {
			c.Status.Phase = corev1.ClaimPending
		}, "1Gi"},
		"equal":               {func(_ *corev1.PersistentVolume, c *corev1.PersistentVolumeClaim) { c.Spec.Resources = request("1Gi") }, "1Gi"},
		"another provisioner": {func(v *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) { v.Annotations = nil }, "1Gi"},
		"another claim":       {func(v *corev1.PersistentVolume, _ *corev1.PersistentVolumeClaim) { v.Spec.ClaimRef.UID = "x" }, "1Gi"},
	} {
		t.Run(name, func(t *testing.T) {
			v, c := pv.DeepCopy(), claim("2Gi")
			c.Spec.VolumeName, c.Status.Phase = volume, corev1.ClaimBound
			c.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
			test.change(v, c)
			client := fake.NewClientset(v, c)
			factory := informers.NewSharedInformerFactory(client, 0)
			lister := factory.Core().V1().PersistentVolumes().Lister()
			factory.Start(t.Context().Done())
			factory.WaitForCacheSync(t.Context().Done())
			assert.NilError(t, (&expander{client: client, volumes: lister}).expand(t.Context(), c))
			now, err := client.CoreV1().PersistentVolumeClaims("shop").Get(t.Context(), "data", metav1.GetOptions{})
			assert.NilError(t, err)
			size := now.Status.Capacity[corev1.ResourceStorage]
			assert.Equal(t, size.String(), test.want)
			allocated := now.Status.AllocatedResources[corev1.ResourceStorage]
			assert.Assert(t, test.want == "1Gi" || allocated.String() == test.want, "allocated: %s", allocated.String())
		})
	}
}
