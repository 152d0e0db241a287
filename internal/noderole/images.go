package noderole

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/criclient"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/preflight"
	"github.com/rootlessnode/rootlessnode/internal/proc"
	"github.com/rootlessnode/rootlessnode/internal/runtime"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
)

// importedImages is the content of layout.Data.ImportedImages.
type importedImages struct {
	// Images maps the name of an image to the digest of the archive that it came from.
	Images map[string]string `json:"images"`
}

// importImages imports the bundled images (pause, CoreDNS) into the runtime, unless it has them. Without the program
// for this, images are pulled from their registries on first use.
func (n *nodeRole) importImages(ctx context.Context) error {
	m, err := preflight.ReadManifest(n.cfg.ComponentsDir)
	if err != nil {
		return err
	}
	importer, err := n.imageImporter()
	if err != nil {
		if text := n.runtime.WithoutImport(); text != "" {
			n.warn(text)
			return nil
		}
		return err
	}
	have, err := criclient.ListImages(ctx, n.binary(criclient.Program), n.environ(nil), runtime.Socket(n.cfg))
	if err != nil {
		return err
	}
	var record importedImages
	if err := layout.ReadState(n.data.ImportedImages(), &record); err != nil && !errors.Is(err, fs.ErrNotExist) {
		n.log.WithError(err).Warn("cannot read the record of imported images; importing them again")
	}
	if record.Images == nil {
		record.Images = map[string]string{}
	}
	for _, image := range m.Images {
		// An image that is not pinned was imported by an older version.
		known := slices.ContainsFunc(have, func(i criclient.Image) bool {
			return slices.Contains(i.Names, image.Name) && (i.Pinned || !n.runtime.HasImageStore())
		})
		if known && record.Images[image.Name] == image.SHA256 {
			continue
		}
		supervisor.Progress(ctx, "importing %s", image.Name)
		if err := importer(ctx, image.Name, filepath.Join(n.cfg.ComponentsDir, image.Path)); err != nil {
			return err
		}
		record.Images[image.Name] = image.SHA256
	}
	return layout.WriteState(n.data.ImportedImages(), record)
}

// imageImporter returns the function that imports an archive with one image under a name.
func (n *nodeRole) imageImporter() (func(ctx context.Context, name, archive string) error, error) {
	if n.runtime.HasImageStore() {
		return n.importArchive, nil
	}
	path, err := runtime.FindProgram(n.cfg.ComponentsDir, n.runtime.ImportCommand("", "")[0])
	return func(ctx context.Context, name, archive string) error {
		argv := n.runtime.ImportCommand(name, archive)
		cmd := exec.CommandContext(ctx, path, argv[1:]...)
		cmd.Env = n.environ(runtime.ClientEnv(n.runtime, n.env.Storage))
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w", strings.Join(argv, " "), proc.Failure(err, out))
		}
		return nil
	}, err
}

func (n *nodeRole) importArchive(ctx context.Context, name, archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return fmt.Errorf("open image archive: %w", err)
	}
	defer func() { _ = f.Close() }() // it was only read
	env := n.environ(runtime.ClientEnv(n.runtime, n.env.Storage))
	result, err := criclient.Import(ctx, n.binary(criclient.Program), env, runtime.Socket(n.cfg), f, name)
	if err != nil {
		return fmt.Errorf("import %s: %w", archive, err)
	}
	return result.Err("import " + archive)
}
