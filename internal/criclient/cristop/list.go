package cristop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
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
		list = append(list, imageOf(i))
	}
	return list, nil
}

func imageOf(i *cri.Image) criclient.Image {
	image := criclient.Image{
		Names: i.GetRepoTags(), NamesWithDigest: i.GetRepoDigests(), ID: i.GetId(), Digest: i.GetId(), Size: i.GetSize(), Pinned: i.GetPinned(),
	}
	for _, d := range image.NamesWithDigest {
		_, image.Digest, _ = strings.Cut(d, "@")
	}
	return image
}

// Client pulls images, and looks up images and their users.
type Client struct{ Conn Conn }

// Image returns the image with a name or an ID, or nil if the runtime does not know it.
func (c Client) Image(ctx context.Context, name string) (*criclient.Image, error) {
	r, err := cri.NewImageServiceClient(c.Conn).ImageStatus(ctx, &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: name}})
	if err != nil {
		return nil, fmt.Errorf("look up image %s: %w", name, err)
	}
	if r.GetImage() == nil {
		return nil, nil //nolint:nilnil // documented
	}
	image := imageOf(r.GetImage())
	return &image, nil
}

// Pull pulls an image. login is nil for an anonymous pull.
func (c Client) Pull(ctx context.Context, name string, login *criclient.Login) error {
	request := &cri.PullImageRequest{Image: &cri.ImageSpec{Image: name}}
	if login != nil {
		request.Auth = &cri.AuthConfig{Username: login.Username, Password: login.Password}
	}
	_, err := cri.NewImageServiceClient(c.Conn).PullImage(ctx, request)
	if err != nil {
		return errors.New(status.Convert(err).Message())
	}
	return nil
}

// Users returns the containers that use the image with an ID, whether they run or not.
func (c Client) Users(ctx context.Context, id string) ([]criclient.Container, error) {
	all, err := Containers(ctx, c.Conn)
	return slices.DeleteFunc(all, func(c criclient.Container) bool { return c.ImageID != id }), err
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
	add := func(id, name, image string, labels map[string]string) {
		list = append(list, criclient.Container{
			ID: id, Name: name, Pod: labels[labelPodName], Namespace: labels[labelPodNamespace], UID: labels[labelPodUID], ImageID: image,
		})
	}
	for _, c := range containers.GetContainers() {
		add(c.GetId(), c.GetMetadata().GetName(), c.GetImageRef(), c.GetLabels())
	}
	for _, s := range sandboxes.GetItems() {
		add(s.GetId(), "", "", s.GetLabels())
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
