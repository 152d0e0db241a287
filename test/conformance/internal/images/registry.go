package images

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// fakeRegistryDir is the directory of the image "pause" of `agnhost fake-registry-server`.
const fakeRegistryDir = "/var/registry/pause/"

// addFakeRegistry creates the directory from which agnhost serves an image "pause:testing", from the archive of the node's pause image.
//
// The served image must have another id than the node's image: the kubelet records by id that an image was pulled with credentials, and
// then requires credentials for every pod that uses an image with this id, under any name.
func addFakeRegistry(t tree, pauseArchive string) error {
	blobs := tree{}
	if err := blobs.fileArchive(pauseArchive); err != nil {
		return err
	}
	served, err := serve(t, blobs)
	if err != nil {
		return fmt.Errorf("fake registry from %s: %w", filepath.Base(pauseArchive), err)
	}
	t.text(fakeRegistryDir+"manifests/testing", served+"\n")
	return nil
}

// serve adds the only image of an OCI layout, with another author, to the fake registry and returns its digest.
func serve(t, blobs tree) (string, error) {
	blob := func(h v1.Hash) []byte { return blobs["blobs/"+h.Algorithm+"/"+h.Hex].data }
	index, err := v1.ParseIndexManifest(bytes.NewReader(blobs["index.json"].data))
	if err != nil {
		return "", err
	}
	if len(index.Manifests) != 1 {
		return "", errors.New("the archive must have exactly one image")
	}
	manifest, err := v1.ParseManifest(bytes.NewReader(blob(index.Manifests[0].Digest)))
	if err != nil {
		return "", err
	}
	config, err := v1.ParseConfigFile(bytes.NewReader(blob(manifest.Config.Digest)))
	if err != nil {
		return "", err
	}
	config.Author = "fake registry"
	for _, layer := range manifest.Layers {
		put(t, "blobs", blob(layer.Digest))
	}
	if err := putJSON(t, "blobs", config, &manifest.Config); err != nil {
		return "", err
	}
	if err := putJSON(t, "manifests", manifest, &index.Manifests[0]); err != nil {
		return "", err
	}
	// The server uses it as the content type of its answer, and an index in an archive may not have it.
	index.MediaType = types.OCIImageIndex
	var descriptor v1.Descriptor
	err = putJSON(t, "manifests", index, &descriptor)
	return descriptor.Digest.String(), err
}

// putJSON stores a value and updates the descriptor of the document that refers to it.
func putJSON(t tree, kind string, value any, descriptor *v1.Descriptor) error {
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	descriptor.Digest, descriptor.Size = put(t, kind, data), int64(len(data))
	return nil
}

// put stores a blob or a manifest under its digest, in the server's layout.
func put(t tree, kind string, data []byte) v1.Hash {
	sum := sha256.Sum256(data)
	id := hex.EncodeToString(sum[:])
	t.bytes(fakeRegistryDir+kind+"/sha256/"+id[:2]+"/"+id+"/data", 0o644, data)
	return v1.Hash{Algorithm: "sha256", Hex: id}
}
