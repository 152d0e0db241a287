package kubeapi

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ObjectID identifies an object of a manifest. Namespace is empty for kinds without namespaces.
type ObjectID struct{ Kind, Namespace, Name string }

func (o ObjectID) String() string {
	if o.Namespace == "" {
		return o.Kind + " " + o.Name
	}
	return o.Kind + " " + o.Namespace + "/" + o.Name
}

// ObjectState is the version of an object.
type ObjectState struct {
	ObjectID
	// Version changes with every change of the object. It is empty if the object does not exist.
	Version string
	// Generation changes with every change of the object's specification. It is 0 for kinds that have none.
	Generation int64
}

// SameSpec reports whether an object in state s has the specification that it had in state old.
func (s ObjectState) SameSpec(old ObjectState) bool {
	return s.Version == old.Version || s.Generation != 0 && s.Generation == old.Generation
}

func stateOf(d document, o *metav1.PartialObjectMetadata) ObjectState {
	s := ObjectState{ObjectID: ObjectID{d.Kind, d.Metadata.Namespace, d.Metadata.Name}}
	if o != nil {
		s.Version, s.Generation = o.ResourceVersion, o.Generation
	}
	return s
}

// WatchObjects calls fn with the state of every object of a manifest, and again after each change, until ctx ends. It
// returns ctx's error. Only objects with the label that the selector names are seen; others do not exist for this watch. fn
// is called by one goroutine at a time. The watch reads only metadata.
func (c objects) WatchObjects(ctx context.Context, manifest []byte, selector string, fn func(ObjectState)) error {
	docs, err := parseManifest(manifest)
	if err != nil {
		return err
	}
	return c.watchDocuments(ctx, docs, selector, fn)
}

// watchDocuments is WatchObjects for documents.
func (c *conn) watchDocuments(ctx context.Context, docs []document, selector string, fn func(ObjectState)) error {
	m := newMapper(c)
	collections := map[string]map[string]document{} // by path and name
	for _, d := range docs {
		path, err := m.path(ctx, d)
		if err != nil {
			return fmt.Errorf("watch %s: %w", d, err)
		}
		path = path[:strings.LastIndexByte(path, '/')]
		if collections[path] == nil {
			collections[path] = map[string]document{}
		}
		collections[path][d.Metadata.Name] = d
	}
	var mu sync.Mutex
	var running sync.WaitGroup
	for path, wanted := range collections {
		report := func(name string, o *metav1.PartialObjectMetadata) {
			if d, ok := wanted[name]; ok {
				mu.Lock()
				defer mu.Unlock()
				fn(stateOf(d, o))
			}
		}
		running.Go(func() { _ = c.followMetadata(ctx, path, selector, wanted, report) })
	}
	running.Wait()
	return context.Cause(ctx)
}

// followMetadata reports the objects of one collection. A missing object is reported as nil.
func (c *conn) followMetadata(
	ctx context.Context, path, selector string, wanted map[string]document, report func(string, *metav1.PartialObjectMetadata),
) error {
	f := follower[metav1.PartialObjectMetadata, *metav1.PartialObjectMetadata]{
		c: c, path: path, labels: selector, metadata: true,
		replace: func(all []*metav1.PartialObjectMetadata) {
			found := map[string]*metav1.PartialObjectMetadata{}
			for _, o := range all {
				found[o.Name] = o
			}
			for name := range wanted {
				report(name, found[name])
			}
		},
		changed: func(o *metav1.PartialObjectMetadata) { report(o.Name, o) },
		deleted: func(o *metav1.PartialObjectMetadata) { report(o.Name, nil) },
	}
	return f.run(ctx)
}

// WatchConfigMap calls fn with the data of a ConfigMap immediately and after every change until ctx ends: nil if the
// ConfigMap does not exist. It returns ctx's error.
func (c objects) WatchConfigMap(ctx context.Context, namespace, name string, fn func(data map[string]string)) error {
	set := func(o *corev1.ConfigMap) {
		if o.Data == nil {
			o.Data = map[string]string{}
		}
		fn(o.Data)
	}
	f := follower[corev1.ConfigMap, *corev1.ConfigMap]{
		c: c.conn, path: namespacesPath + "/" + namespace + "/configmaps", selector: "metadata.name=" + name,
		replace: func(all []*corev1.ConfigMap) {
			if len(all) == 0 {
				fn(nil)
			}
			for _, o := range all {
				set(o)
			}
		},
		changed: set,
		deleted: func(*corev1.ConfigMap) { fn(nil) },
	}
	return f.run(ctx)
}

// read returns the object at path, or nil if it does not exist.
func read[T any](ctx context.Context, c *conn, path string) (*T, error) {
	var obj T
	err := c.do(ctx, request{method: http.MethodGet, path: path}, &obj)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return &obj, nil
}
