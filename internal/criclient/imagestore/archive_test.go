package imagestore

import (
	"testing"

	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/criclient"
)

func manifest(content, architecture string) ocispec.Descriptor {
	d := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString(content)}
	if architecture != "" {
		d.Platform = &ocispec.Platform{OS: "linux", Architecture: architecture}
	}
	return d
}

// TestIsImage checks that signatures and attestations of an archive are not imported.
func TestIsImage(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		change func(*ocispec.Descriptor)
		want   bool
	}{
		{"image", func(*ocispec.Descriptor) {}, true},
		{"image of docker", func(d *ocispec.Descriptor) { d.MediaType = dockerManifest }, true},
		{"index", func(d *ocispec.Descriptor) { d.MediaType = ocispec.MediaTypeImageIndex }, true},
		{"with the type of its configuration", func(d *ocispec.Descriptor) { d.ArtifactType = dockerConfig }, true},
		{"artifact", func(d *ocispec.Descriptor) { d.ArtifactType = "application/vnd.example+json" }, false},
		{"attestation of buildx", func(d *ocispec.Descriptor) { d.Platform = &ocispec.Platform{OS: "unknown", Architecture: "unknown"} }, false},
		{"signature", func(d *ocispec.Descriptor) { d.Annotations = map[string]string{manifestSubject: "sha256:1"} }, false},
		{"layer", func(d *ocispec.Descriptor) { d.MediaType = ocispec.MediaTypeImageLayer }, false},
	} {
		d := manifest("a", "")
		tc.change(&d)
		assert.Equal(t, isImage(d), tc.want, tc.name)
	}
}

func TestAnnotate(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ name, ref, want, tag string }{
		{"", "", "", ""},
		{"", "v1", "", "v1"},
		{"", "app:dev", "docker.io/library/app:dev", ""},
		{"", "localhost/app", "localhost/app:latest", ""},
		{"registry.example/app:1", "1", "registry.example/app:1", ""},
	} {
		var e entry
		for range 2 { // the second time, it is a duplicate
			assert.NilError(t, e.annotate(map[string]string{imageName: tc.name, ocispec.AnnotationRefName: tc.ref}))
		}
		assert.Equal(t, e.tag, tc.tag)
		if tc.want == "" {
			assert.Equal(t, len(e.names), 0)
		} else {
			assert.DeepEqual(t, e.names, []string{tc.want})
		}
	}
	assert.ErrorContains(t, (&entry{}).annotate(map[string]string{ocispec.AnnotationRefName: "App:1"}), "must be lowercase")
}

// TestOtherPlatforms checks that the same name for several platforms is one image, and that a name only for another platform is kept, so
// that it is reported.
func TestOtherPlatforms(t *testing.T) {
	t.Parallel()
	own := platforms.DefaultSpec().Architecture
	entries := []entry{
		{target: manifest("a", "s390x"), names: []string{"a"}}, {target: manifest("b", own), names: []string{"a"}},
		{target: manifest("c", "s390x"), names: []string{"c"}},
	}
	assert.Equal(t, len(withoutOtherPlatforms(entries)), 2)
	var res result
	assert.Equal(t, len(chooseNames(&res, withoutOtherPlatforms(entries[:2]), []string{"x"})), 1)
	assert.Equal(t, len(chooseNames(&res, entries, []string{"x"})), 0)
	assert.Equal(t, res.Faults[0].Kind, criclient.FaultSeveral)
}

func TestImportFault(t *testing.T) {
	t.Parallel()
	var res result
	assert.NilError(t, res.importFault("image might be filtered out"))
	assert.Equal(t, res.Faults[0].Kind, criclient.FaultPlatform)
	assert.ErrorContains(t, res.importFault("write /var/lib/containerd: no space left on device"), "no space left on device")
}
