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

	"github.com/sirupsen/logrus"

	"github.com/rootlessnode/rootlessnode/config"
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
	// Preloaded has the imported archives of preloadDir by file name.
	Preloaded map[string]preloaded `json:"preloaded,omitempty"`
}

// imageImporter imports images at the start.
type imageImporter struct {
	cfg     *config.NodeConfig
	runtime runtime.Runtime
	// record is the path of layout.Data.ImportedImages.
	record string
	// program is the helper program, and env the environment of the runtime's clients.
	program string
	env     []string
	warn    func(...string)
	log     logrus.FieldLogger
}

func newImageImporter(n *nodeRole) *imageImporter {
	return &imageImporter{
		cfg: n.cfg, runtime: n.runtime, record: n.data.ImportedImages(), program: n.binary(criclient.Program),
		env: n.environ(runtime.ClientEnv(n.runtime, n.env.Storage)), warn: n.warn, log: n.log,
	}
}

// Run imports the bundled images (pause, CoreDNS) into the runtime, unless it has them, and then those of preloadDir. Without the
// program for this, bundled images are pulled from their registries on first use.
func (i *imageImporter) Run(ctx context.Context) error {
	m, err := preflight.ReadManifest(i.cfg.ComponentsDir)
	if err != nil {
		return err
	}
	importer, err := i.importer()
	if err != nil {
		if text := i.runtime.WithoutImport(); text != "" {
			i.warn(text)
			return nil
		}
		return err
	}
	have, err := criclient.ListImages(ctx, i.program, i.env, runtime.Socket(i.cfg))
	if err != nil {
		return err
	}
	var record importedImages
	if err := layout.ReadState(i.record, &record); err != nil && !errors.Is(err, fs.ErrNotExist) {
		i.log.WithError(err).Warn("cannot read the record of imported images; importing them again")
	}
	if record.Images == nil {
		record.Images = map[string]string{}
	}
	for _, image := range m.Images {
		// An image that is not pinned was imported by an older version.
		known := slices.ContainsFunc(have, func(h criclient.Image) bool {
			return slices.Contains(h.Names, image.Name) && (h.Pinned || !i.runtime.HasImageStore())
		})
		if known && record.Images[image.Name] == image.SHA256 {
			continue
		}
		supervisor.Progress(ctx, "importing %s", image.Name)
		if err := importer(ctx, image.Name, filepath.Join(i.cfg.ComponentsDir, image.Path)); err != nil {
			return err
		}
		record.Images[image.Name] = image.SHA256
	}
	record.Preloaded = i.preload(ctx, record.Preloaded, have)
	return layout.WriteState(i.record, record)
}

// importer returns the function that imports an archive with one image under a name.
func (i *imageImporter) importer() (func(ctx context.Context, name, archive string) error, error) {
	if i.runtime.HasImageStore() {
		return func(ctx context.Context, name, archive string) error {
			r, err := i.importArchive(ctx, archive, name)
			if err != nil {
				return err
			}
			return r.Err("import " + archive)
		}, nil
	}
	path, err := runtime.FindProgram(i.cfg.ComponentsDir, i.runtime.ImportCommand("", "")[0])
	return func(ctx context.Context, name, archive string) error {
		argv := i.runtime.ImportCommand(name, archive)
		cmd := exec.CommandContext(ctx, path, argv[1:]...)
		cmd.Env = i.env
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w", strings.Join(argv, " "), proc.Failure(err, out))
		}
		return nil
	}, err
}

// importArchive imports an archive of the host. names replace its names.
func (i *imageImporter) importArchive(ctx context.Context, archive string, names ...string) (*criclient.StoreResult, error) {
	f, err := os.Open(archive)
	if err != nil {
		return nil, fmt.Errorf("open image archive: %w", err)
	}
	defer func() { _ = f.Close() }() // it was only read
	result, err := criclient.Import(ctx, i.program, i.env, runtime.Socket(i.cfg), f, names...)
	if err != nil {
		return nil, fmt.Errorf("import %s: %w", archive, err)
	}
	return result, nil
}
