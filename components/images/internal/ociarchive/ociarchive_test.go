package ociarchive

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"gotest.tools/v3/assert"
)

func testImage(t *testing.T) Image {
	t.Helper()
	program := filepath.Join(t.TempDir(), "program")
	assert.NilError(t, os.WriteFile(program, []byte("a program"), 0o600))
	return Image{
		Name: "example.org:5000/some/pause:1.2", Architecture: "arm64", User: "1:2",
		Entrypoint: []string{"/bin/pause"}, Files: map[string]string{"/bin/pause": program},
	}
}

// members reads a tar file.
func members(t *testing.T, r io.Reader) (map[string][]byte, []*tar.Header) {
	t.Helper()
	contents := map[string][]byte{}
	var headers []*tar.Header
	tr := tar.NewReader(r)
	for {
		header, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return contents, headers
		}
		assert.NilError(t, err)
		data, err := io.ReadAll(tr)
		assert.NilError(t, err)
		contents[header.Name] = data
		headers = append(headers, header)
	}
}

func TestWriteIsValid(t *testing.T) {
	var archive bytes.Buffer
	assert.NilError(t, Write(&archive, testImage(t)))
	contents, _ := members(t, &archive)
	blob := func(d ocispec.Descriptor) []byte {
		data, ok := contents["blobs/sha256/"+d.Digest.Encoded()]
		assert.Assert(t, ok, "no blob %s", d.Digest)
		assert.Equal(t, digest.FromBytes(data), d.Digest)
		assert.Equal(t, int64(len(data)), d.Size)
		return data
	}
	decode := func(data []byte, v any) { assert.NilError(t, json.Unmarshal(data, v)) }

	var layout ocispec.ImageLayout
	decode(contents["oci-layout"], &layout)
	assert.Equal(t, layout.Version, "1.0.0")

	var index ocispec.Index
	decode(contents["index.json"], &index)
	assert.Equal(t, len(index.Manifests), 1)
	assert.DeepEqual(t, index.Manifests[0].Annotations, map[string]string{
		"io.containerd.image.name":          "example.org:5000/some/pause:1.2",
		"org.opencontainers.image.ref.name": "1.2",
	})
	assert.DeepEqual(t, index.Manifests[0].Platform, &ocispec.Platform{OS: "linux", Architecture: "arm64"})

	var manifest ocispec.Manifest
	decode(blob(index.Manifests[0]), &manifest)
	assert.Equal(t, len(manifest.Layers), 1)

	var config ocispec.Image
	decode(blob(manifest.Config), &config)
	assert.Equal(t, config.OS, "linux")
	assert.Equal(t, config.Architecture, "arm64")
	assert.Equal(t, config.Config.User, "1:2")
	assert.DeepEqual(t, config.Config.Entrypoint, []string{"/bin/pause"})
	assert.DeepEqual(t, config.RootFS.DiffIDs, []digest.Digest{manifest.Layers[0].Digest})
	assert.Equal(t, len(config.History), len(manifest.Layers))

	files, headers := members(t, bytes.NewReader(blob(manifest.Layers[0])))
	assert.Equal(t, string(files["bin/pause"]), "a program")
	assert.Equal(t, len(headers), 2)
	assert.Equal(t, headers[0].Name, "bin/")
	assert.Equal(t, headers[1].Mode, int64(0o755))
	assert.Equal(t, headers[1].Uid, 0)
}

func TestWriteIsReproducible(t *testing.T) {
	image := testImage(t)
	var first, second bytes.Buffer
	assert.NilError(t, Write(&first, image))
	later := time.Now().Add(time.Hour)
	assert.NilError(t, os.Chtimes(image.Files["/bin/pause"], later, later))
	assert.NilError(t, Write(&second, image))
	assert.Assert(t, bytes.Equal(first.Bytes(), second.Bytes()))
}

func TestWriteRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Image)
		want   string
	}{
		"no tag":          {func(i *Image) { i.Name = "example.org:5000/pause" }, "HOST/PATH:TAG"},
		"no host":         {func(i *Image) { i.Name = "pause:1" }, "HOST/PATH:TAG"},
		"no architecture": {func(i *Image) { i.Architecture = "" }, "no architecture"},
		"no entrypoint":   {func(i *Image) { i.Entrypoint = nil }, "no entrypoint"},
		"no such program": {func(i *Image) { i.Entrypoint = []string{"/else"} }, "not one of the files"},
		"relative file":   {func(i *Image) { i.Files["x"] = "y" }, "clean absolute path"},
		"escaping file":   {func(i *Image) { i.Files["/../x"] = "y" }, "clean absolute path"},
		"missing source":  {func(i *Image) { i.Files["/x"] = "/nonexistent/y" }, "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			image := testImage(t)
			test.change(&image)
			assert.ErrorContains(t, Write(io.Discard, image), test.want)
		})
	}
}
