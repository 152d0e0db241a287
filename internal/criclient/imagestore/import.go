package imagestore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	leasesapi "github.com/containerd/containerd/api/services/leases/v1"
	transferapi "github.com/containerd/containerd/api/services/transfer/v1"
	"github.com/containerd/containerd/api/types"
	transfertypes "github.com/containerd/containerd/api/types/transfer"
	"github.com/containerd/platforms"
	"github.com/containerd/typeurl/v2"

	"github.com/rootlessnode/rootlessnode/internal/criclient"
)

// indexPrefix begins the temporary name of an archive's index in the store. It is a complete name of no registry, because CRI
// completes names when it adds them and would not find a short one to remove it.
const indexPrefix = "rootlessnode.invalid/import:"

// Import imports an archive: docker's or OCI's format, plain or compressed with gzip or zstd. containerd writes only layers that it
// does not have. Images that cannot be used are faults of the result.
func (s *Store) Import(ctx context.Context, r io.Reader, req criclient.ImportRequest) (*criclient.StoreResult, error) {
	ctx = s.context(ctx)
	var res result
	index := indexPrefix + rand.Text()
	// The name is deleted also if ctx was canceled. Without it, containerd deletes what has no other name.
	defer func() {
		_, _ = s.images.Delete(context.WithoutCancel(ctx), &imagesapi.DeleteImageRequest{Name: index}) // it may not exist
	}()
	if err := s.receive(ctx, &res, r, index); err != nil || len(res.Faults) > 0 {
		return &res.StoreResult, errors.Join(err, s.collectGarbage(context.WithoutCancel(ctx)))
	}
	found, err := s.images.Get(ctx, &imagesapi.GetImageRequest{Name: index})
	if err != nil {
		return nil, fmt.Errorf("find the index of the archive: %s", reason(err))
	}
	entries, err := s.entries(ctx, &res, found.GetImage().GetTarget().GetDigest())
	if err != nil {
		return nil, err
	}
	for _, e := range chooseNames(&res, entries, req.Names) {
		id, ok, err := s.check(ctx, &res, e)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		target := &types.Descriptor{MediaType: e.target.MediaType, Digest: e.target.Digest.String(), Size: e.target.Size}
		if err := s.name(ctx, &res, target, id, e.names); err != nil {
			return nil, err
		}
	}
	return &res.StoreResult, nil
}

// receive sends the archive to containerd, which writes its parts to the content store, unpacks the images for this platform, and
// stores the index of the archive under a name. Errors of the archive are faults of the result.
func (s *Store) receive(ctx context.Context, res *result, r io.Reader, index string) error {
	input := &inputReader{r: r}
	id, wait, err := s.send(ctx, input)
	if err != nil {
		return err
	}
	platform := platforms.DefaultSpec()
	this := &types.Platform{OS: platform.OS, Architecture: platform.Architecture, Variant: platform.Variant}
	from, err := typeurl.MarshalAnyToProto(&transfertypes.ImageImportStream{Stream: id})
	if err != nil {
		return fmt.Errorf("import the archive: %w", err)
	}
	to, err := typeurl.MarshalAnyToProto(&transfertypes.ImageStore{
		Name: index, Labels: map[string]string{managedKey: managedValue}, Platforms: []*types.Platform{this},
		Unpacks: []*transfertypes.UnpackConfiguration{{Platform: this, Snapshotter: s.o.Snapshotter}},
	})
	if err != nil {
		return fmt.Errorf("import the archive: %w", err)
	}
	_, err = s.transfer.Transfer(ctx, &transferapi.TransferRequest{Source: from, Destination: to, Options: &transferapi.TransferOptions{}})
	wait()
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case input.err != nil: // containerd regards it as the end of the archive
		return fmt.Errorf("read the archive: %w", input.err)
	case err != nil && input.n == 0:
		res.fault(criclient.FaultFormat, "the archive is empty")
	case err != nil:
		return res.importFault(reason(err))
	}
	return nil
}

// collectGarbage runs containerd's garbage collection. After a failed import it deletes the parts of the archive: containerd would
// otherwise continue an incomplete part with the part of the same name of the next archive.
func (s *Store) collectGarbage(ctx context.Context) error {
	id := "rootlessnode-" + rand.Text()
	if _, err := s.leases.Create(ctx, &leasesapi.CreateRequest{ID: id}); err != nil {
		return fmt.Errorf("collect garbage: %s", reason(err))
	}
	if _, err := s.leases.Delete(ctx, &leasesapi.DeleteRequest{ID: id, Sync: true}); err != nil {
		return fmt.Errorf("collect garbage: %s", reason(err))
	}
	return nil
}

// importFaults are the messages of containerd's importer about the content of an archive. It has no codes for them.
var importFaults = []struct {
	text string
	kind criclient.FaultKind
}{
	{"unexpected EOF", criclient.FaultIncomplete},
	{"not found", criclient.FaultIncomplete},
	{"no target for symlink layer", criclient.FaultIncomplete},
	{"missing index.json", criclient.FaultIncomplete},
	{"might be filtered out", criclient.FaultPlatform},
	{"no match for platform", criclient.FaultPlatform},
	{"normalize image ref", criclient.FaultName},
	{"invalid tar header", criclient.FaultFormat},
	{"unrecognized image format", criclient.FaultFormat},
	{"unsupported OCI version", criclient.FaultFormat},
	{"untar", criclient.FaultFormat},
	{"gzip", criclient.FaultFormat},
	{"zstd", criclient.FaultFormat},
	{"flate", criclient.FaultFormat},
	{"invalid character", criclient.FaultFormat},
	{"cannot unmarshal", criclient.FaultFormat},
	{"invalid checksum", criclient.FaultFormat},
	{"mismatched image rootfs", criclient.FaultFormat},
}

// importFault adds a fault for a message of containerd's importer. It returns an error if the message is not about the archive.
func (r *result) importFault(message string) error {
	for _, f := range importFaults {
		if !strings.Contains(message, f.text) {
			continue
		}
		switch f.kind {
		case criclient.FaultPlatform:
			r.fault(f.kind, "the archive has no image for %s", platforms.Format(platforms.DefaultSpec()))
		case criclient.FaultIncomplete:
			r.fault(f.kind, "the archive is incomplete: %s", message)
		case criclient.FaultName:
			r.fault(f.kind, "the archive has an image with an invalid name: %s", message)
		default:
			r.fault(f.kind, "not an image archive of docker or OCI: %s", message)
		}
		return nil
	}
	return fmt.Errorf("import the archive: %s", message)
}

// chooseNames returns the images to import with the names that they get.
func chooseNames(res *result, entries []entry, names []string) []entry {
	if len(names) > 0 {
		if len(entries) > 1 {
			texts := make([]string, len(entries))
			for i, e := range entries {
				texts[i] = e.String()
			}
			res.fault(criclient.FaultSeveral, "the archive has %d images, and a name is for one: %s", len(entries), strings.Join(texts, ", "))
			return nil
		}
		for i := range entries {
			entries[i].names = names
		}
		return entries
	}
	return slices.DeleteFunc(entries, func(e entry) bool {
		switch {
		case len(e.names) > 0:
			return false
		case e.tag != "":
			res.fault(criclient.FaultName, "the archive has an image without a name, only with the tag %q", e.tag)
		default:
			res.fault(criclient.FaultName, "the archive has an image without a name")
		}
		return true
	})
}
