// Package images builds the images that Kubernetes' end-to-end suite runs, without a registry and without privileges. The programs come
// from the Go modules of the suite, and everything else from Debian packages. All images are in one archive and share common layers. It runs
// on the host, as any user.
package images

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/google/go-containerregistry/pkg/compression"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

//go:embed build.go catalog.go debian.go registry.go tree.go
var sources embed.FS

// Recipes returns data that changes whenever the code that builds the images changes.
func Recipes() []byte {
	var all bytes.Buffer
	entries, err := sources.ReadDir(".")
	for _, entry := range entries {
		var data []byte
		if data, err = sources.ReadFile(entry.Name()); err != nil {
			break
		}
		all.Write(data)
	}
	if err != nil {
		panic(err) // the files are embedded
	}
	return all.Bytes()
}

// Build writes the archive of all images to the file output. programs is the directory with the images' programs. work is a directory for
// downloads and intermediate files, which is kept for the next build.
func Build(ctx context.Context, programs, work, output string) error {
	if err := os.MkdirAll(work, 0o755); err != nil {
		return err
	}
	b := builder{ctx: ctx, programs: programs, work: work, roots: map[string]v1.Layer{}}
	archive := map[name.Tag]v1.Image{}
	for _, i := range catalog() {
		made, err := b.image(i)
		if err != nil {
			return fmt.Errorf("image %s: %w", i.names[0], err)
		}
		for _, n := range i.names {
			tag, err := name.NewTag(n)
			if err != nil {
				return err
			}
			archive[tag] = made
		}
	}
	// Write to another file first, so that an incomplete archive is not used.
	partial := output + ".partial"
	if err := tarball.MultiWriteToFile(partial, archive); err != nil {
		return errors.Join(fmt.Errorf("write image archive: %w", err), os.Remove(partial))
	}
	return os.Rename(partial, output)
}

type builder struct {
	ctx      context.Context
	programs string
	work     string
	roots    map[string]v1.Layer
}

func (b *builder) image(i image) (v1.Image, error) {
	var layers []v1.Layer
	if i.root != none {
		layer, err := b.rootLayer(i.root)
		if err != nil {
			return nil, err
		}
		layers = append(layers, layer)
	}
	if i.add != nil {
		t := tree{}
		if err := i.add(t, b.programs); err != nil {
			return nil, err
		}
		layer, err := b.layer(filepath.Base(i.names[0]), t)
		if err != nil {
			return nil, err
		}
		layers = append(layers, layer)
	}
	made, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		return nil, err
	}
	config, err := made.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = "linux", runtime.GOARCH
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	if i.env != nil {
		env = i.env
	}
	config.Config = v1.Config{User: i.user, Entrypoint: i.entrypoint, Cmd: i.cmd, Env: env, WorkingDir: "/"}
	for _, port := range i.ports {
		if config.Config.ExposedPorts == nil {
			config.Config.ExposedPorts = map[string]struct{}{}
		}
		config.Config.ExposedPorts[port] = struct{}{}
	}
	return mutate.ConfigFile(made, config)
}

// rootLayer returns the layer of a root, which is built once for all its images.
func (b *builder) rootLayer(root string) (v1.Layer, error) {
	if layer, ok := b.roots[root]; ok {
		return layer, nil
	}
	makers := map[string]func(context.Context, string) (tree, error){debian: debianRoot, busybox: busyboxRoot}
	dir := filepath.Join(b.work, root)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	t, err := makers[root](b.ctx, dir)
	if err != nil {
		return nil, err
	}
	layer, err := b.layer(root, t)
	if err == nil {
		b.roots[root] = layer
	}
	return layer, err
}

// layer writes a tree to a file and returns it as a layer. It is not compressed, because it is only used on this host.
func (b *builder) layer(file string, t tree) (v1.Layer, error) {
	path := filepath.Join(b.work, file+".layer.tar")
	f, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(t.write(f), f.Close()); err != nil {
		return nil, fmt.Errorf("layer %s: %w", file, err)
	}
	return tarball.LayerFromFile(path, tarball.WithCompression(compression.None))
}
