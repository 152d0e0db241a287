package main

import (
	"cmp"
	"context"
	"errors"
	"os"
	"runtime"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/internal/criclient"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/node"
)

// stdinFile is the file name that means standard input.
const stdinFile = "-"

func newImagesImport(a *app) *cobra.Command {
	var names []string
	cmd := &cobra.Command{
		Use:   "import FILE...",
		Short: "Import image archives from the host into the node",
		Long: `Import image archives (docker save, podman save, OCI; plain or compressed with gzip or
zstd) from the host into the node, so that pods can use them without a registry. Use -
for standard input. Names are completed as docker does: app:dev becomes
docker.io/library/app:dev, which pods can also write as app:dev. Imported images are
kept until "rootlessnode images remove".`,
		Example: `  docker save my/app:dev | rootlessnode images import -
  rootlessnode images import --name app:dev image.tar`,
		Args: arguments(1, -1),
		RunE: withNode(a, func(ctx context.Context, n imageNode, files []string) error {
			i := nodeImages{a, n}
			complete, err := i.completeNames(names, files)
			if err != nil {
				return err
			}
			return i.importFiles(ctx, files, complete)
		}),
	}
	// The flag of the root command with this name can be given only before "images".
	cmd.Flags().StringArrayVar(&names, "name", nil, "`NAME` of the image, if the archive has one image; replaces its names; may be repeated")
	return a.withOutput(cmd)
}

// completeNames checks and completes the names of --name.
func (i nodeImages) completeNames(names, files []string) ([]string, error) {
	if len(names) > 0 && len(files) > 1 {
		return nil, errdefs.Config("--name: got %d archives, expected one", len(files)).Hint(i.command("images import --name NAME FILE"))
	}
	var complete []string
	for _, name := range names {
		c, err := criclient.CompleteName(name)
		if err != nil {
			return nil, errdefs.Config("--name: %w", err).Hint(i.command("images import --name app:dev FILE"))
		}
		if i.isNode(name) {
			return nil, errdefs.Config("--name %s: this is the name of a node, and here --name is the name of the image", name).
				Hint("# to select the node:", "rootlessnode --name "+hostinfo.Quote(name)+" images import FILE",
					"# for this image name:", i.command("images import --name "+hostinfo.Quote(name)+":latest FILE"))
		}
		complete = append(complete, c)
	}
	return complete, nil
}

// isNode reports whether the account has a node with this name.
func (i nodeImages) isNode(name string) bool {
	if strings.ContainsAny(name, ":/@") {
		return false
	}
	n, err := i.attach(name, node.Options{Log: i.logger()})
	if err != nil {
		return false
	}
	d, ok := n.(interface{ Data() layout.Data })
	if !ok {
		return false
	}
	_, err = os.Stat(d.Data().Record())
	return err == nil
}

// importFiles imports every file and returns the errors of all that failed.
func (i nodeImages) importFiles(ctx context.Context, files, names []string) error {
	if err := i.requireStore(""); err != nil {
		return err
	}
	opened, err := i.openArchives(files)
	defer func() {
		for _, f := range opened {
			if f != i.stdin {
				_ = f.Close() // it was only read
			}
		}
	}()
	if err != nil {
		return err
	}
	var imported []criclient.Image
	var faults []error
	for k, f := range opened {
		r, err := i.change(ctx, criclient.ImportImages, criclient.ImportRequest{Names: names}, f)
		if err != nil {
			return errors.Join(errors.Join(faults...), err)
		}
		imported = append(imported, r.Images...)
		faults = append(faults, i.faults("import "+files[k], files[k], r.Faults))
	}
	i.showChanged("imported", imported)
	return errors.Join(faults...)
}

// openArchives opens all files before the first one is imported, so that nothing is imported if one is missing.
func (i nodeImages) openArchives(files []string) ([]*os.File, error) {
	var opened []*os.File
	var faults []error
	for _, name := range files {
		f := i.stdin
		if name != stdinFile {
			var err error
			if f, err = os.Open(name); err != nil {
				faults = append(faults, errdefs.Config("open image archive: %w", err))
				continue
			}
		} else if isTerminal(f) {
			faults = append(faults, errdefs.Config("import images: standard input is a terminal").
				Hint("docker save NAME | "+i.command("images import -")))
			continue
		}
		opened = append(opened, f)
	}
	return opened, errors.Join(faults...)
}

// faults returns the faults as errors with their fixes. file is the archive, for commands.
func (i nodeImages) faults(prefix, file string, faults []criclient.Fault) error {
	var errs []error
	for _, f := range faults {
		err := errdefs.Errorf("%s: %s", prefix, f.Message)
		if fix := i.fix(f.Kind, hostinfo.Quote(cmp.Or(file, stdinFile))); fix != "" {
			err = err.Hint(fix)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (i nodeImages) fix(kind criclient.FaultKind, file string) string {
	switch kind {
	case criclient.FaultName:
		return i.command("images import --name NAME:TAG " + file)
	case criclient.FaultSeveral:
		return i.command("images import " + file)
	case criclient.FaultPlatform:
		return "build the image for this platform: docker build --platform linux/" + runtime.GOARCH
	case criclient.FaultIncomplete:
		return "copy or save the archive again"
	case criclient.FaultFormat:
		return "docker save NAME | " + i.command("images import -") + "    # or compressed with gzip or zstd"
	case criclient.FaultNotFound:
		return i.command("images list")
	case criclient.FaultInUse:
		return i.command("images remove --force NAME    # the pods cannot start again without the image")
	}
	return ""
}
