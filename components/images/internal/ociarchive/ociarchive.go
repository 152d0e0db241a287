// Package ociarchive writes OCI archives with a single image: a tar file with an
// OCI image layout, which containerd imports without a registry.
//
// The output is reproducible with any Go release: all times are zero, members are
// sorted, and the layer is not compressed, because a compressor may change its
// output between releases. It needs no privileges.
//
// It supports only images of a few regular files. It does not support several
// platforms or layers, links, devices and file ownership.
package ociarchive

import (
	"archive/tar"
	"bytes"
	_ "crypto/sha256" // go-digest uses it by name only
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// annotationImageName is the annotation from which containerd reads the full name
// of an image in an archive. The OCI annotation may contain only a tag.
const annotationImageName = "io.containerd.image.name"

// Image is the image of an archive.
type Image struct {
	// Name is the full reference with a tag, for instance example.org/pause:1.
	Name string
	// Architecture is a GOARCH value. The operating system is always Linux.
	Architecture string
	// User is the user, or USER:GROUP, that runs the command.
	User string
	// Entrypoint is the command. Its first element must be a file of the image.
	Entrypoint []string
	// Files maps absolute paths in the image to files of the build.
	Files map[string]string
}

func (i Image) validate() error {
	var errs []error
	slash := strings.IndexByte(i.Name, '/')
	colon := strings.LastIndexByte(i.Name, ':')
	if slash <= 0 || colon <= slash+1 || colon == len(i.Name)-1 {
		errs = append(errs, fmt.Errorf("name %q is not of the form HOST/PATH:TAG", i.Name))
	}
	if i.Architecture == "" {
		errs = append(errs, errors.New("no architecture"))
	}
	if len(i.Entrypoint) == 0 {
		errs = append(errs, errors.New("no entrypoint"))
	} else if _, ok := i.Files[i.Entrypoint[0]]; !ok {
		errs = append(errs, fmt.Errorf("entrypoint %s is not one of the files", i.Entrypoint[0]))
	}
	for name := range i.Files {
		if !path.IsAbs(name) || path.Clean(name) != name || name == "/" {
			errs = append(errs, fmt.Errorf("file name %q is not a clean absolute path", name))
		}
	}
	return errors.Join(errs...)
}

// Write writes the archive of image to w.
func Write(w io.Writer, image Image) error {
	if err := image.validate(); err != nil {
		return fmt.Errorf("image: %w", err)
	}
	layer, err := layerOf(image.Files)
	if err != nil {
		return fmt.Errorf("layer of image %s: %w", image.Name, err)
	}
	platform := ocispec.Platform{OS: "linux", Architecture: image.Architecture}

	blobs := map[digest.Digest][]byte{}
	add := func(mediaType string, data []byte) ocispec.Descriptor {
		d := digest.FromBytes(data)
		blobs[d] = data
		return ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(data))}
	}
	addJSON := func(mediaType string, v any) (ocispec.Descriptor, error) {
		data, err := json.Marshal(v)
		return add(mediaType, data), err
	}

	layerDescriptor := add(ocispec.MediaTypeImageLayer, layer)
	config, err := addJSON(ocispec.MediaTypeImageConfig, ocispec.Image{
		Platform: platform,
		Config:   ocispec.ImageConfig{User: image.User, Entrypoint: image.Entrypoint, WorkingDir: "/"},
		// The diff id of an uncompressed layer is its digest.
		RootFS: ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{layerDescriptor.Digest}},
		// buildah refuses to build on an image whose history does not have an entry for each layer.
		History: []ocispec.History{{CreatedBy: "rootlessnode"}},
	})
	if err != nil {
		return fmt.Errorf("image config: %w", err)
	}
	manifest, err := addJSON(ocispec.MediaTypeImageManifest, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageManifest,
		Config:    config,
		Layers:    []ocispec.Descriptor{layerDescriptor},
	})
	if err != nil {
		return fmt.Errorf("image manifest: %w", err)
	}
	manifest.Platform = &platform
	manifest.Annotations = map[string]string{
		annotationImageName:       image.Name,
		ocispec.AnnotationRefName: image.Name[strings.LastIndexByte(image.Name, ':')+1:],
	}
	return writeLayout(w, manifest, blobs)
}

// writeLayout writes the members that the image layout specification requires.
func writeLayout(w io.Writer, manifest ocispec.Descriptor, blobs map[digest.Digest][]byte) error {
	layout, err := json.Marshal(ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion})
	if err != nil {
		return fmt.Errorf("image layout: %w", err)
	}
	index, err := json.Marshal(ocispec.Index{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageIndex,
		Manifests: []ocispec.Descriptor{manifest},
	})
	if err != nil {
		return fmt.Errorf("image index: %w", err)
	}
	members := map[string][]byte{
		ocispec.ImageLayoutFile: layout,
		ocispec.ImageIndexFile:  index,
	}
	for d, data := range blobs {
		members[path.Join(ocispec.ImageBlobsDir, d.Algorithm().String(), d.Encoded())] = data
	}
	return writeTar(w, 0o644, members)
}

// layerOf returns the layer. All files are executable by all and owned by root, so
// that the image's user cannot change them.
func layerOf(files map[string]string) ([]byte, error) {
	members := map[string][]byte{}
	for name, source := range files {
		data, err := os.ReadFile(source)
		if err != nil {
			return nil, err
		}
		members[strings.TrimPrefix(name, "/")] = data
	}
	var layer bytes.Buffer
	err := writeTar(&layer, 0o755, members)
	return layer.Bytes(), err
}

// writeTar writes the members, and each of their directories before its first
// member.
func writeTar(w io.Writer, mode int64, members map[string][]byte) error {
	names := map[string]bool{}
	for name := range members {
		for ; name != "."; name = path.Dir(name) {
			names[name] = true
		}
	}
	sorted := make([]string, 0, len(names))
	for name := range names {
		sorted = append(sorted, name)
	}
	slices.Sort(sorted)

	tw := tar.NewWriter(w)
	for _, name := range sorted {
		data, regular := members[name]
		header := &tar.Header{
			Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(data)),
			ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR,
		}
		if !regular {
			header.Typeflag, header.Name, header.Mode = tar.TypeDir, name+"/", 0o755
		}
		if err := tw.WriteHeader(header); err != nil {
			return err
		}
		if _, err := tw.Write(data); err != nil {
			return err
		}
	}
	return tw.Close()
}
