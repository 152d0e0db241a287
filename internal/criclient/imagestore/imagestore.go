// Package imagestore imports image archives into containerd, and names and removes its images. CRI has no calls for that. It is
// a part of the helper program of package criclient, and only that program imports it, because it links gRPC.
//
// It uses containerd's API without its client: the client's module requires a version of runc that does not have the package of
// internal/userns, for each program that embeds a node (docs/dependencies.md).
//
// Images that it imports or names are pinned: the kubelet's garbage collection keeps them, because they cannot be pulled again.
//
// Runs in: child (the helper program).
package imagestore

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	streamingapi "github.com/containerd/containerd/api/services/streaming/v1"
	transferapi "github.com/containerd/containerd/api/services/transfer/v1"
	"github.com/containerd/containerd/api/types"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	"github.com/rootlessnode/rootlessnode/internal/criclient"
)

// Labels of containerd's CRI plugin.
const (
	// pinnedKey is the label by which CRI reports an image as pinned.
	pinnedKey   = "io.cri-containerd.pinned"
	pinnedValue = "pinned"
	// managedKey marks a reference for which CRI creates no other references.
	managedKey   = "io.cri-containerd.image"
	managedValue = "managed"
)

// CRI has the calls of the container runtime interface that this package needs.
type CRI interface {
	// Image returns the image with a name or an ID, or nil if CRI does not know it.
	Image(ctx context.Context, name string) (*criclient.Image, error)
	// Pull pulls an image. login is nil for an anonymous pull.
	Pull(ctx context.Context, name string, login *criclient.Login) error
	// Users returns the containers that use the image with an ID.
	Users(ctx context.Context, id string) ([]criclient.Container, error)
}

// Options are the arguments of New.
type Options struct {
	// Namespace and Snapshotter are those of CRI.
	Namespace, Snapshotter string
	CRI                    CRI
}

// Store is the image store of containerd.
type Store struct {
	o         Options
	images    imagesapi.ImagesClient
	content   contentapi.ContentClient
	leases    leasesapi.LeasesClient
	transfer  transferapi.TransferClient
	streaming streamingapi.StreamingClient
}

// New returns the image store of the containerd of a connection.
func New(conn grpc.ClientConnInterface, o Options) *Store {
	return &Store{
		o: o, images: imagesapi.NewImagesClient(conn), content: contentapi.NewContentClient(conn), leases: leasesapi.NewLeasesClient(conn),
		transfer: transferapi.NewTransferClient(conn), streaming: streamingapi.NewStreamingClient(conn),
	}
}

// context returns a context whose requests have the namespace.
func (s *Store) context(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, "containerd-namespace", s.o.Namespace)
}

// result collects the images and the faults of a request.
type result struct{ criclient.StoreResult }

func (r *result) fault(kind criclient.FaultKind, format string, args ...any) {
	r.Faults = append(r.Faults, criclient.Fault{Kind: kind, Message: fmt.Sprintf(format, args...)})
}

// reason returns the message of an error of containerd.
func reason(err error) string { return status.Convert(err).Message() }

// Tag adds names to an image of the store.
func (s *Store) Tag(ctx context.Context, req criclient.TagRequest) (*criclient.StoreResult, error) {
	ctx = s.context(ctx)
	found, err := s.images.Get(ctx, &imagesapi.GetImageRequest{Name: req.ID}) // CRI has a reference with the ID of each image
	if err != nil {
		return nil, fmt.Errorf("find image %s: %s", req.ID, reason(err))
	}
	var r result
	return &r.StoreResult, s.name(ctx, &r, found.GetImage().GetTarget(), req.ID, req.Names)
}

// Pull pulls an image with the first login that the registry accepts, or anonymously without logins, and pins it.
func (s *Store) Pull(ctx context.Context, req criclient.PullRequest, logins []criclient.Login) (*criclient.StoreResult, error) {
	var err error
	if len(logins) == 0 {
		err = s.o.CRI.Pull(ctx, req.Name, nil)
	}
	for i := range logins {
		if err = s.o.CRI.Pull(ctx, req.Name, &logins[i]); err == nil {
			break
		}
	}
	var r result
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		r.fault(criclient.FaultPull, "%v", err)
		return &r.StoreResult, nil
	}
	image, err := s.o.CRI.Image(ctx, req.Name)
	if err != nil {
		return nil, err
	}
	if image == nil {
		return nil, fmt.Errorf("find image %s: removed after it was pulled", req.Name)
	}
	return s.Tag(ctx, criclient.TagRequest{ID: image.ID, Names: []string{req.Name}})
}

// name adds names to the image with an ID, pins it under these names, and adds it to the result. It waits until CRI knows the names,
// because the kubelet asks CRI.
func (s *Store) name(ctx context.Context, r *result, target *types.Descriptor, id string, names []string) error {
	target = &types.Descriptor{MediaType: target.GetMediaType(), Digest: target.GetDigest(), Size: target.GetSize()}
	for _, name := range names {
		image := &imagesapi.Image{Name: name, Target: target, Labels: map[string]string{pinnedKey: pinnedValue}}
		_, err := s.images.Create(ctx, &imagesapi.CreateImageRequest{Image: image})
		if status.Code(err) == codes.AlreadyExists {
			mask := &fieldmaskpb.FieldMask{Paths: []string{"target", "labels." + pinnedKey}}
			_, err = s.images.Update(ctx, &imagesapi.UpdateImageRequest{Image: image, UpdateMask: mask})
		}
		if err != nil {
			return fmt.Errorf("name image %s: %s", name, reason(err))
		}
		known, err := s.waitKnown(ctx, name, id)
		if err != nil {
			return err
		}
		known.Names = []string{name}
		r.Images = append(r.Images, *known)
	}
	return nil
}

// CRI follows containerd's events, usually within milliseconds.
const (
	knownLimit = 10 * time.Second
	knownEvery = 20 * time.Millisecond
)

// waitKnown waits until CRI has the image with an ID under a name.
func (s *Store) waitKnown(ctx context.Context, name, id string) (*criclient.Image, error) {
	limit := time.After(knownLimit)
	for {
		image, err := s.o.CRI.Image(ctx, name)
		if err != nil {
			return nil, err
		}
		if image != nil && image.ID == id && image.Pinned {
			return image, nil
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-limit:
			return nil, fmt.Errorf("image %s: the container runtime does not list it within %s", name, knownLimit)
		case <-time.After(knownEvery):
		}
	}
}

// Remove removes names of images. With its last name it removes the image.
func (s *Store) Remove(ctx context.Context, req criclient.RemoveRequest) (*criclient.StoreResult, error) {
	ctx = s.context(ctx)
	var r result
	for _, name := range req.Names {
		if err := s.remove(ctx, &r, name, req.Force); err != nil {
			return nil, err
		}
	}
	return &r.StoreResult, nil
}

func (s *Store) remove(ctx context.Context, r *result, name string, force bool) error {
	image, err := s.o.CRI.Image(ctx, name)
	switch {
	case err != nil:
		return err
	case image == nil:
		r.fault(criclient.FaultNotFound, "%s: not found", name)
		return nil
	}
	refs := []string{name}
	if last := len(slices.DeleteFunc(slices.Clone(image.Names), func(n string) bool { return n == name })) == 0; last {
		users, err := s.o.CRI.Users(ctx, image.ID)
		if err != nil {
			return err
		}
		if len(users) > 0 && !force {
			r.fault(criclient.FaultInUse, "%s: in use by %s", name, podsOf(users))
			return nil
		}
		refs = slices.Concat(refs, image.NamesWithDigest, []string{image.ID})
	}
	for i, ref := range refs {
		// With sync, garbage collection runs before the call returns.
		_, err := s.images.Delete(ctx, &imagesapi.DeleteImageRequest{Name: ref, Sync: i == len(refs)-1})
		if err != nil && status.Code(err) != codes.NotFound {
			return fmt.Errorf("remove image %s: %s", ref, reason(err))
		}
	}
	image.Names = []string{name}
	r.Images = append(r.Images, *image)
	return nil
}

// podsOf returns the pods of containers: "default/db, default/web".
func podsOf(containers []criclient.Container) string {
	pods := map[string]bool{}
	for _, c := range containers {
		pods[c.Namespace+"/"+c.Pod] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(pods)), ", ")
}
