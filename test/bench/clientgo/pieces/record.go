//go:build ignore

// This piece records an Event with client-go's tools/record, a scheme with only the core group, and a sink over REST. This avoids
// the typed clients.

package kubeapi

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
)

// measureRecord records one Event and keeps the recorder.
func measureRecord(cfg *rest.Config) error {
	scheme := runtime.NewScheme()
	utilruntime.Must(corev1.AddToScheme(scheme))
	utilruntime.Must(metav1.AddMetaToScheme(scheme))
	c := rest.CopyConfig(cfg)
	c.APIPath, c.GroupVersion = "/api", &corev1.SchemeGroupVersion
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(c)
	if err != nil {
		return err
	}
	b := record.NewBroadcaster(record.WithContext(context.Background()))
	b.StartRecordingToSink(measuredSink{client})
	node := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "measured", UID: "measured"}
	b.NewRecorder(scheme, corev1.EventSource{Component: "rootlessnode"}).Event(node, corev1.EventTypeNormal, "Measured", "a measurement")
	return nil
}

type measuredSink struct{ c rest.Interface }

func (s measuredSink) Create(e *corev1.Event) (*corev1.Event, error) {
	out := &corev1.Event{}
	return out, s.c.Post().Namespace(e.Namespace).Resource("events").Body(e).Do(context.Background()).Into(out)
}

func (s measuredSink) Update(e *corev1.Event) (*corev1.Event, error) {
	out := &corev1.Event{}
	return out, s.c.Put().Namespace(e.Namespace).Resource("events").Name(e.Name).Body(e).Do(context.Background()).Into(out)
}

func (s measuredSink) Patch(e *corev1.Event, data []byte) (*corev1.Event, error) {
	out := &corev1.Event{}
	return out, s.c.Patch(types.StrategicMergePatchType).Namespace(e.Namespace).Resource("events").Name(e.Name).Body(data).
		Do(context.Background()).Into(out)
}
