package main

import (
	"maps"
	"testing"

	"gotest.tools/v3/assert"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

var testOptions = options{node: "n1", label: "example.com/volumes", labelValue: "here"}

func class(name, provisioner, isDefault string) *storagev1.StorageClass {
	c := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner}
	if isDefault != "" {
		c.Annotations = map[string]string{annotationDefault: isDefault}
	}
	return c
}

// keep reconciles until nothing changes, and returns the storage class.
func keep(t *testing.T, classes ...*storagev1.StorageClass) *storagev1.StorageClass {
	t.Helper()
	client := fake.NewClientset()
	api := client.StorageV1().StorageClasses()
	for _, c := range classes {
		_, err := api.Create(t.Context(), c, metav1.CreateOptions{})
		assert.NilError(t, err)
	}
	k := &classKeeper{client: client, options: testOptions, classes: func() []*storagev1.StorageClass {
		list, err := api.List(t.Context(), metav1.ListOptions{})
		assert.NilError(t, err)
		var all []*storagev1.StorageClass
		for i := range list.Items {
			all = append(all, &list.Items[i])
		}
		return all
	}}
	var last map[string]string
	for i := range 3 {
		assert.NilError(t, k.reconcile(t.Context()))
		own, err := api.Get(t.Context(), className, metav1.GetOptions{})
		assert.NilError(t, err)
		assert.Assert(t, i == 0 || maps.Equal(last, own.Annotations), "it changes the class for ever")
		last = own.Annotations
	}
	own, err := api.Get(t.Context(), className, metav1.GetOptions{})
	assert.NilError(t, err)
	return own
}

func TestClassIsTheDefault(t *testing.T) {
	const other = "example.com/other"
	for name, test := range map[string]struct {
		classes []*storagev1.StorageClass
		want    string
	}{
		"a new cluster":                {nil, "true"},
		"another class":                {[]*storagev1.StorageClass{class("a", other, "")}, "true"},
		"another class, not default":   {[]*storagev1.StorageClass{class("a", other, "false")}, "true"},
		"the user's default":           {[]*storagev1.StorageClass{class("a", other, "true")}, ""},
		"the user's later default":     {[]*storagev1.StorageClass{class(className, provisionerName, "true"), class("a", other, "true")}, ""},
		"the user's default is gone":   {[]*storagev1.StorageClass{class(className, provisionerName, "")}, "true"},
		"switched off by the user":     {[]*storagev1.StorageClass{class(className, provisionerName, "false")}, "false"},
		"the user's class of the name": {[]*storagev1.StorageClass{class(className, other, "")}, ""},
		"nothing to do":                {[]*storagev1.StorageClass{class(className, provisionerName, "true")}, "true"},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, keep(t, test.classes...).Annotations[annotationDefault], test.want)
		})
	}
}

func TestClass(t *testing.T) {
	c := keep(t)
	assert.Equal(t, c.Provisioner, provisionerName)
	assert.Equal(t, *c.VolumeBindingMode, storagev1.VolumeBindingWaitForFirstConsumer)
	assert.Equal(t, c.AllowedTopologies[0].MatchLabelExpressions[0].Key, testOptions.label)
}

// TestCapacity checks that the free space is written once, and again when it has changed noticeably.
func TestCapacity(t *testing.T) {
	client := fake.NewClientset()
	free := int64(100 << 30)
	r := &capacityReporter{
		client: client, options: testOptions, free: func() (int64, error) { return free, nil }, reported: map[string]int64{},
		classes: func() []*storagev1.StorageClass {
			return []*storagev1.StorageClass{class(className, provisionerName, ""), class("a", "example.com/other", "")}
		},
	}
	reported := func() string {
		t.Helper()
		assert.NilError(t, r.report(t.Context()))
		c, err := client.StorageV1().CSIStorageCapacities(capacityNamespace).Get(t.Context(), className, metav1.GetOptions{})
		assert.NilError(t, err)
		return c.Capacity.String()
	}
	assert.Equal(t, reported(), "100Gi")
	free -= 1 << 29
	assert.Equal(t, reported(), "100Gi")
	free = 10 << 30
	assert.Equal(t, reported(), "10Gi")
	_, err := client.StorageV1().CSIStorageCapacities(capacityNamespace).Get(t.Context(), "a", metav1.GetOptions{})
	assert.Assert(t, apierrors.IsNotFound(err))
}
