package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"os"
	"runtime"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"gotest.tools/v3/assert"
)

// smallImage returns an image with one file. Each call returns another image.
func smallImage(t *testing.T) v1.Image {
	t.Helper()
	image, err := mutate.AppendLayers(empty.Image, static.NewLayer(tarOf(t, "file", []byte(t.TempDir())), types.DockerUncompressedLayer))
	assert.NilError(t, err)
	return withPlatform(t, image, runtime.GOARCH)
}

func withPlatform(t *testing.T, image v1.Image, architecture string) v1.Image {
	t.Helper()
	config, err := image.ConfigFile()
	assert.NilError(t, err)
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", architecture
	image, err = mutate.ConfigFile(image, config)
	assert.NilError(t, err)
	return image
}

func tarOf(t *testing.T, path string, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	assert.NilError(t, w.WriteHeader(&tar.Header{Name: path, Mode: 0o644, Size: int64(len(content))}))
	_, err := w.Write(content)
	assert.NilError(t, err)
	assert.NilError(t, w.Close())
	return b.Bytes()
}

func zipped(t *testing.T, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, err := w.Write(data)
	assert.NilError(t, err)
	assert.NilError(t, w.Close())
	return b.Bytes()
}

// dockerArchive returns an archive as `docker save` writes it.
func dockerArchive(t *testing.T, image v1.Image, tag string) []byte {
	t.Helper()
	ref, err := name.NewTag(tag)
	assert.NilError(t, err)
	var b bytes.Buffer
	assert.NilError(t, tarball.Write(ref, image, &b))
	return b.Bytes()
}

// ociArchive returns an OCI archive. ref is the annotation with the name or the tag; empty for none.
func ociArchive(t *testing.T, image v1.Image, ref string) []byte {
	t.Helper()
	dir := t.TempDir()
	path, err := layout.Write(dir, empty.Index)
	assert.NilError(t, err)
	var options []layout.Option
	if ref != "" {
		options = append(options, layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": ref}))
	}
	assert.NilError(t, path.AppendImage(image, options...))
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	assert.NilError(t, w.AddFS(os.DirFS(dir)))
	assert.NilError(t, w.Close())
	return b.Bytes()
}
