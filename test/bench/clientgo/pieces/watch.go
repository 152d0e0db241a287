//go:build ignore

// This piece follows the objects of a node's watches with client-go's reflectors.

package kubeapi

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// measureWatch starts the reflectors; they end with the process.
func measureWatch(cfg *rest.Config) error {
	scheme := runtime.NewScheme()
	utilruntime.Must(corev1.AddToScheme(scheme))
	utilruntime.Must(discoveryv1.AddToScheme(scheme))
	client := func(path string, gv schema.GroupVersion) (*rest.RESTClient, error) {
		c := rest.CopyConfig(cfg)
		c.APIPath, c.GroupVersion = path, &gv
		c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
		return rest.RESTClientFor(c)
	}
	core, err := client("/api", corev1.SchemeGroupVersion)
	if err != nil {
		return err
	}
	discovery, err := client("/apis", discoveryv1.SchemeGroupVersion)
	if err != nil {
		return err
	}
	for _, w := range []struct {
		from     cache.Getter
		resource string
		object   runtime.Object
	}{
		{core, "nodes", &corev1.Node{}},
		{core, "pods", &corev1.Pod{}},
		{core, "services", &corev1.Service{}},
		{discovery, "endpointslices", &discoveryv1.EndpointSlice{}},
	} {
		list := cache.NewListWatchFromClient(w.from, w.resource, "", fields.Everything())
		go cache.NewReflector(list, w.object, measuredStore{}, 0).RunWithContext(context.Background())
		if _, err := watchtools.NewRetryWatcherWithContext(context.Background(), "1", cache.ToWatcherWithContext(list)); err != nil {
			return err
		}
	}
	return nil
}

// measuredStore keeps no object, because rootlessnode keeps only a few fields.
type measuredStore struct{}

func (measuredStore) Add(any) error               { return nil }
func (measuredStore) Update(any) error            { return nil }
func (measuredStore) Delete(any) error            { return nil }
func (measuredStore) Replace([]any, string) error { return nil }
func (measuredStore) Resync() error               { return nil }
