package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/internal/criclient"
	"github.com/rootlessnode/rootlessnode/internal/nodeexec"
	"github.com/rootlessnode/rootlessnode/internal/runtime"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

type imageNode interface {
	handle
	executor
}

func newImages(a *app) *cobra.Command {
	return group(&cobra.Command{Use: "images", Short: "Import and list container images"}, newImagesImport(a), newImagesList(a))
}

func newImagesImport(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "import FILE...",
		Short: "Load image archives from the host into the node",
		Long: `Load image archives (docker save, OCI) from the host into the node, so that pods can
use them without a registry. Use - for standard input.`,
		Example: `  docker save my/app:dev | rootlessnode images import -`,
		Args:    arguments(1, -1),
		RunE:    withNode(a, func(ctx context.Context, n imageNode, files []string) error { return importImages(ctx, a, n, files) }),
	}
}

func newImagesList(a *app) *cobra.Command {
	return a.withOutput(&cobra.Command{
		Use:   "list",
		Short: "List the images of the node",
		RunE:  withNode(a, func(ctx context.Context, n imageNode, _ []string) error { return listImages(ctx, a, n) }),
	})
}

// importImages imports every file and returns the errors of all that failed.
func importImages(ctx context.Context, a *app, n imageNode, files []string) error {
	// Open all files first, so that nothing is imported if one is missing.
	opened := make([]*os.File, 0, len(files))
	defer func() {
		for _, f := range opened {
			_ = f.Close() // it was only read
		}
	}()
	var faults []error
	for _, name := range files {
		if name == "-" {
			opened = append(opened, a.stdin)
			continue
		}
		f, err := os.Open(name)
		if err != nil {
			faults = append(faults, errdefs.Config("open image archive: %w", err))
			continue
		}
		opened = append(opened, f)
	}
	if len(faults) > 0 {
		return errors.Join(faults...)
	}
	rt := runtime.Of(n.Config())
	argv := rt.ImportCommand("", "-")
	if argv == nil {
		return errdefs.Config("import images: supported with containerd only, but the node's runtime is %s (cri.runtime)", n.Config().CRI.Runtime).
			Hint(a.command("exec -- " + rt.ManualImport()))
	}
	for i, f := range opened {
		err := execute(ctx, a, n, nodeexec.Request{Argv: argv, Stdin: f})
		var code exitCode
		switch {
		case errors.As(err, &code):
			faults = append(faults, fmt.Errorf("import %s: %s exited with code %d, see its output above", files[i], argv[0], int(code)))
		case err != nil:
			return err
		}
	}
	return errors.Join(faults...)
}

// image is one row of the list.
type image struct {
	Name   string `json:"name"`
	Digest string `json:"digest"`
	Size   string `json:"size"`
}

func listImages(ctx context.Context, a *app, n imageNode) error {
	text, code, err := output(ctx, n, []string{criclient.Program, criclient.Images, runtime.Socket(n.Config())}, a.stderr)
	if err != nil {
		return a.hintNotRunning(err)
	}
	if code != 0 {
		return fmt.Errorf("list images: %s exited with code %d, see its output above", criclient.Program, code)
	}
	list, err := parseImages(text)
	if err != nil {
		return fmt.Errorf("list images: %w", err)
	}
	rows := [][]string{{"IMAGE", "SIZE", "DIGEST"}}
	for _, i := range list {
		rows = append(rows, []string{i.Name, i.Size, shortDigest(i.Digest)})
	}
	a.show(list, table(rows))
	return nil
}

// output runs a program inside the node and returns its standard output and exit code.
func output(ctx context.Context, n executor, argv []string, stderr *os.File) (string, int, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return "", 1, err
	}
	text := make(chan string, 1)
	go func() {
		b, _ := io.ReadAll(r) // on an error, use what was read so far
		_ = r.Close()
		text <- string(b)
	}()
	code, err := n.Exec(ctx, nodeexec.Request{Argv: argv, Stdout: w, Stderr: stderr, ForwardSignals: true})
	_ = w.Close() // ends the reader
	return <-text, code, err
}

// parseImages converts the output of the CRI client. An image without a name, only with digests, is not listed.
func parseImages(text string) ([]image, error) {
	var found []criclient.Image
	if err := json.Unmarshal([]byte(text), &found); err != nil {
		return nil, fmt.Errorf("read the output of %s: %w", criclient.Program, err)
	}
	list := []image{}
	for _, i := range found {
		for _, name := range i.Names {
			list = append(list, image{Name: name, Digest: i.Digest, Size: imageSize(i.Size)})
		}
	}
	slices.SortFunc(list, func(x, y image) int { return strings.Compare(x.Name, y.Name) })
	return list, nil
}

// imageSize returns the size with a binary unit: "48.1 MiB".
func imageSize(bytes uint64) string {
	const step = 1024
	units := []string{"B", "KiB", "MiB", "GiB"}
	size := float64(bytes)
	for len(units) > 1 && size >= step {
		size, units = size/step, units[1:]
	}
	return fmt.Sprintf("%.1f %s", size, units[0])
}

func shortDigest(d string) string {
	const shown = len("sha256:") + 12
	return d[:min(len(d), shown)]
}
