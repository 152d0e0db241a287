package images

import (
	"bytes"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"gotest.tools/v3/assert"
)

// layout returns an OCI layout with one image.
func layout(t *testing.T) (tree, v1.Descriptor) {
	t.Helper()
	made, blobs := tree{}, tree{}
	var config, manifest v1.Descriptor
	assert.NilError(t, putJSON(made, "blobs", v1.ConfigFile{OS: "linux", Architecture: "amd64"}, &config))
	layer := v1.Descriptor{Digest: put(made, "blobs", []byte("a layer")), Size: 7}
	assert.NilError(t, putJSON(made, "blobs", v1.Manifest{SchemaVersion: 2, Config: config, Layers: []v1.Descriptor{layer}}, &manifest))
	assert.NilError(t, putJSON(made, "index", v1.IndexManifest{SchemaVersion: 2, Manifests: []v1.Descriptor{manifest}}, &v1.Descriptor{}))
	for name, member := range made {
		parts := strings.Split(name, "/")
		blobs.bytes("/blobs/sha256/"+parts[len(parts)-2], 0o644, member.data)
		if strings.Contains(name, "/index/") {
			blobs.bytes("/index.json", 0o644, member.data)
		}
	}
	return blobs, config
}

func TestFakeRegistryServesAnImageOfItsOwn(t *testing.T) {
	t.Parallel()
	blobs, own := layout(t)
	made := tree{}
	digest, err := serve(made, blobs)
	assert.NilError(t, err)

	// The requests of a client.
	get := func(kind, digest string) []byte {
		id := strings.TrimPrefix(digest, "sha256:")
		data := made[clean(fakeRegistryDir+kind+"/sha256/"+id[:2]+"/"+id+"/data")].data
		assert.Assert(t, data != nil, "%s %s", kind, digest)
		return data
	}
	index, err := v1.ParseIndexManifest(bytes.NewReader(get("manifests", digest)))
	assert.NilError(t, err)
	assert.Equal(t, string(index.MediaType), "application/vnd.oci.image.index.v1+json")
	manifest, err := v1.ParseManifest(bytes.NewReader(get("manifests", index.Manifests[0].Digest.String())))
	assert.NilError(t, err)
	config := get("blobs", manifest.Config.Digest.String())
	assert.Equal(t, int64(len(config)), manifest.Config.Size)
	assert.Equal(t, string(get("blobs", manifest.Layers[0].Digest.String())), "a layer")
	assert.Assert(t, manifest.Config.Digest != own.Digest, "it must have another id than the node's image")
}

func TestFakeRegistryNeedsOneImage(t *testing.T) {
	t.Parallel()
	blobs := tree{}
	_, err := serve(tree{}, blobs)
	assert.Assert(t, err != nil)
	blobs.text("/index.json", `{"schemaVersion":2,"manifests":[]}`)
	_, err = serve(tree{}, blobs)
	assert.ErrorContains(t, err, "must have exactly one image")
}
