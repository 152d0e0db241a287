package imagestore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rootlessnode/rootlessnode/internal/criclient"
)

// Media types of docker's format.
const (
	dockerManifest = "application/vnd.docker.distribution.manifest.v2+json"
	dockerConfig   = "application/vnd.docker.container.image.v1+json"
	dockerList     = "application/vnd.docker.distribution.manifest.list.v2+json"
)

// Annotations of containerd.
const (
	// imageName is the complete name of an image in an index.
	imageName = "io.containerd.image.name"
	// manifestSubject marks what refers to an image, such as a signature.
	manifestSubject = "io.containerd.manifest.subject"
)

// entry is an image of an archive.
type entry struct {
	target ocispec.Descriptor
	names  []string
	// tag is the tag of an image whose name is not in the archive.
	tag string
}

func (e entry) String() string {
	if len(e.names) > 0 {
		return e.names[0]
	}
	return e.target.Digest.String()
}

// entries returns the images of an archive's index. The index has an image once for each of its names.
func (s *Store) entries(ctx context.Context, res *result, index string) ([]entry, error) {
	var idx ocispec.Index
	if err := s.readJSON(ctx, index, &idx); err != nil {
		return nil, fmt.Errorf("read the index of the archive: %w", err)
	}
	byDigest := map[digest.Digest]int{}
	var all []entry
	for _, m := range idx.Manifests {
		if !isImage(m) {
			continue
		}
		i, ok := byDigest[m.Digest]
		if !ok {
			i = len(all)
			byDigest[m.Digest] = i
			all = append(all, entry{target: m})
		}
		if err := all[i].annotate(m.Annotations); err != nil {
			res.fault(criclient.FaultName, "the archive has an image with an %v", err)
			all[i].tag = ""
		}
	}
	if len(all) == 0 {
		res.fault(criclient.FaultFormat, "the archive has no images")
	}
	return withoutOtherPlatforms(all), nil
}

// annotate adds the name of the annotations. OCI permits a name or only a tag in the same annotation: "v1" is a tag.
func (e *entry) annotate(annotations map[string]string) error {
	name, ref := annotations[imageName], annotations[ocispec.AnnotationRefName]
	if name == "" && strings.ContainsAny(ref, ":/") {
		name = ref
	}
	if name == "" {
		e.tag = ref
		return nil
	}
	complete, err := criclient.CompleteName(name)
	if err == nil && !slices.Contains(e.names, complete) {
		e.names = append(e.names, complete)
	}
	return err
}

// isImage reports whether a manifest of an index is an image or an index of images. Signatures and attestations are not.
func isImage(m ocispec.Descriptor) bool {
	unknown := m.Platform != nil && (m.Platform.OS == "unknown" || m.Platform.Architecture == "unknown")
	_, refers := m.Annotations[manifestSubject]
	// Some tools write the type of the configuration as the type of the artifact.
	image := m.ArtifactType == "" || m.ArtifactType == ocispec.MediaTypeImageConfig || m.ArtifactType == dockerConfig
	return (isIndex(m) || m.MediaType == ocispec.MediaTypeImageManifest || m.MediaType == dockerManifest) && image && !unknown && !refers
}

func isIndex(m ocispec.Descriptor) bool {
	return m.MediaType == ocispec.MediaTypeImageIndex || m.MediaType == dockerList
}

// fits reports whether a manifest is for this platform, or may be for it because the index does not say.
func fits(m ocispec.Descriptor) bool {
	return m.Platform == nil || platforms.Only(platforms.DefaultSpec()).Match(*m.Platform)
}

// withoutOtherPlatforms returns the entries without those for other platforms, if the same name has an entry for this platform.
func withoutOtherPlatforms(entries []entry) []entry {
	return slices.DeleteFunc(slices.Clone(entries), func(e entry) bool {
		return !fits(e.target) && slices.ContainsFunc(entries, func(o entry) bool {
			return fits(o.target) && slices.Equal(o.names, e.names) && o.tag == e.tag
		})
	})
}

// check returns the ID of an image, the digest of its configuration, and whether the node can use it. If it cannot, the result has a
// fault.
func (s *Store) check(ctx context.Context, res *result, e entry) (id string, ok bool, err error) {
	id, platform, err := s.identify(ctx, e.target)
	switch {
	case status.Code(err) == codes.NotFound:
		res.fault(criclient.FaultIncomplete, "%s: the archive is incomplete: %s", e, reason(err))
		return "", false, nil
	case err != nil:
		return "", false, fmt.Errorf("read image %s: %w", e, err)
	}
	need := platforms.DefaultSpec()
	if id == "" || !platforms.Only(need).Match(platform) {
		res.fault(criclient.FaultPlatform, "%s is for %s, and the node needs %s", e, formatPlatform(platform), platforms.Format(need))
		return "", false, nil
	}
	return id, true, nil
}

// identify returns the digest of an image's configuration and its platform. The digest is empty if an index has no image for this
// platform; the platform is then one that it has.
func (s *Store) identify(ctx context.Context, target ocispec.Descriptor) (id string, platform ocispec.Platform, err error) {
	if isIndex(target) {
		var idx ocispec.Index
		if err := s.readJSON(ctx, target.Digest.String(), &idx); err != nil {
			return "", platform, err
		}
		for _, m := range idx.Manifests {
			if !isImage(m) {
				continue
			}
			if fits(m) {
				return s.identify(ctx, m)
			}
			platform = *m.Platform
		}
		return "", platform, nil
	}
	var manifest ocispec.Manifest
	if err := s.readJSON(ctx, target.Digest.String(), &manifest); err != nil {
		return "", platform, err
	}
	var image ocispec.Image
	if err := s.readJSON(ctx, manifest.Config.Digest.String(), &image); err != nil {
		return "", platform, err
	}
	return manifest.Config.Digest.String(), platforms.Normalize(image.Platform), nil
}

func formatPlatform(p ocispec.Platform) string {
	if p.OS == "" && p.Architecture == "" {
		return "an unknown platform"
	}
	return platforms.Format(p)
}

// maxDocument is the maximum size of an index, a manifest or a configuration, in bytes.
const maxDocument = 8 << 20

// readJSON decodes a document in the content store.
func (s *Store) readJSON(ctx context.Context, dgst string, v any) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.content.Read(ctx, &contentapi.ReadContentRequest{Digest: dgst})
	if err != nil {
		return err
	}
	var text []byte
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		text = append(text, part.GetData()...)
		if len(text) > maxDocument {
			return fmt.Errorf("%s is larger than %d bytes", dgst, maxDocument)
		}
	}
	if err := json.Unmarshal(text, v); err != nil {
		return fmt.Errorf("decode %s: %w", dgst, err)
	}
	return nil
}
