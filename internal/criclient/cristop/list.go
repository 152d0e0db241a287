package cristop

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/rootlessnode/rootlessnode/internal/criclient"
)

// Conn is a connection to a runtime.
type Conn = grpc.ClientConnInterface

// Images returns the images of the runtime.
func Images(ctx context.Context, conn Conn) ([]criclient.Image, error) {
	r, err := cri.NewImageServiceClient(conn).ListImages(ctx, &cri.ListImagesRequest{})
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	list := []criclient.Image{}
	for _, i := range r.GetImages() {
		image := criclient.Image{Names: i.GetRepoTags(), Digest: i.GetId(), Size: i.GetSize()}
		for _, d := range i.GetRepoDigests() {
			_, image.Digest, _ = strings.Cut(d, "@")
		}
		list = append(list, image)
	}
	return list, nil
}

// Containers returns the containers and sandboxes of the kubelet's pods.
func Containers(ctx context.Context, conn Conn) ([]criclient.Container, error) {
	rt := cri.NewRuntimeServiceClient(conn)
	containers, err := rt.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	sandboxes, err := rt.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	list := []criclient.Container{}
	add := func(id, name string, labels map[string]string) {
		list = append(list, criclient.Container{
			ID: id, Name: name, Pod: labels[labelPodName], Namespace: labels[labelPodNamespace], UID: labels[labelPodUID],
		})
	}
	for _, c := range containers.GetContainers() {
		add(c.GetId(), c.GetMetadata().GetName(), c.GetLabels())
	}
	for _, s := range sandboxes.GetItems() {
		add(s.GetId(), "", s.GetLabels())
	}
	return list, nil
}

// Conditions returns the conditions of the runtime.
func Conditions(ctx context.Context, conn Conn) ([]criclient.Condition, error) {
	r, err := cri.NewRuntimeServiceClient(conn).Status(ctx, &cri.StatusRequest{})
	if err != nil {
		return nil, fmt.Errorf("read the status: %w", err)
	}
	list := []criclient.Condition{}
	for _, c := range r.GetStatus().GetConditions() {
		list = append(list, criclient.Condition{Type: c.GetType(), OK: c.GetStatus(), Reason: c.GetReason(), Message: c.GetMessage()})
	}
	return list, nil
}
