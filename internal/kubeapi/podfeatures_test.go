package kubeapi

import (
	"context"
	"testing"

	"gotest.tools/v3/assert"
)

func volumePod(name, uid, node, phase string, volumes ...object) object {
	return object{
		"metadata": object{"name": name, "namespace": "ns", "uid": uid},
		"spec":     object{"nodeName": node, "volumes": volumes}, "status": object{"phase": phase},
	}
}

func TestWatchPodFeatures(t *testing.T) {
	f := newFakeAPI(t, false)
	c := f.client(t)
	run := object{"name": "v", "hostPath": object{"path": "/run/x", "type": "DirectoryOrCreate"}}
	f.put(volumePod("a", "1", "me", "Pending", object{"name": "e", "emptyDir": object{}}, run))
	users := volumePod("users", "7", "me", "Pending")
	users["spec"].(object)["hostUsers"] = false
	f.put(volumePod("none", "2", "me", "Running", object{"name": "e", "emptyDir": object{}}))
	f.put(volumePod("far", "3", "other", "Running", run))
	f.put(volumePod("over", "4", "me", "Succeeded", run))
	next := gather(t, func(ctx context.Context, fn func(PodFeatures)) error { return c.WatchPodFeatures(ctx, "me", fn) })
	want := func(name, uid string) PodFeatures {
		return PodFeatures{Namespace: "ns", Name: name, UID: uid, Paths: []HostPath{{"/run/x", "DirectoryOrCreate"}}}
	}
	assert.DeepEqual(t, next(), want("a", "1"))
	f.put(volumePod("a", "1", "me", "Running", run)) // known
	f.put(volumePod("b", "5", "me", "Pending", run))
	assert.DeepEqual(t, next(), want("b", "5"))
	f.remove(volumePod("a", "1", "me", "Running", run))
	f.put(volumePod("a", "6", "me", "Pending", run)) // another pod of that name
	assert.DeepEqual(t, next(), want("a", "6"))
	f.put(users)
	assert.DeepEqual(t, next(), PodFeatures{Namespace: "ns", Name: "users", UID: "7", OwnUsers: true})
}
