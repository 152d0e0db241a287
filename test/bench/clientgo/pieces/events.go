//go:build ignore

// This piece records an Event with client-go's tools/events.

package kubeapi

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	toolsevents "k8s.io/client-go/tools/events"
)

// measureEvents records one Event and keeps the recorder.
func measureEvents(cfg *rest.Config) error {
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return err
	}
	b := toolsevents.NewBroadcaster(&toolsevents.EventSinkImpl{Interface: client.EventsV1()})
	if err := b.StartRecordingToSinkWithContext(context.Background()); err != nil {
		return err
	}
	node := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: "measured", UID: "measured"}
	b.NewRecorder(scheme.Scheme, "rootlessnode").Eventf(node, nil, corev1.EventTypeNormal, "Measured", "Measure", "a measurement")
	return nil
}
