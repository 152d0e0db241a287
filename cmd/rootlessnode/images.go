package main

import (
	"cmp"
	"context"
	"encoding/json"
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
	return group(&cobra.Command{Use: "images", Short: "Load, build, import, pull, list and remove container images"},
		newImagesLoad(a), newImagesBuild(a), newImagesImport(a), newImagesPull(a), newImagesList(a), newImagesRemove(a))
}

func newImagesList(a *app) *cobra.Command {
	return a.withOutput(&cobra.Command{
		Use:   "list",
		Short: "List the images of the node",
		RunE:  withNode(a, func(ctx context.Context, n imageNode, _ []string) error { return nodeImages{a, n}.list(ctx) }),
	})
}

func newImagesRemove(a *app) *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "remove NAME...",
		Short: "Remove images from the node",
		Long: `Remove names of images from the node. An image is deleted with its last name. An image
that a container uses is kept unless --force is given.`,
		Example: `  rootlessnode images remove my/app:dev`,
		Args:    arguments(1, -1),
		RunE: withNode(a, func(ctx context.Context, n imageNode, names []string) error {
			return nodeImages{a, n}.remove(ctx, names, force)
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "also remove images that containers use, and images of the node itself")
	return a.withOutput(cmd)
}

// nodeImages are the images of a node.
type nodeImages struct {
	*app
	n imageNode
}

// image is one row of the list.
type image struct {
	Name   string `json:"name"`
	Digest string `json:"digest"`
	// Size is the size in bytes.
	Size   uint64 `json:"size"`
	Pinned bool   `json:"pinned"`
}

func (i nodeImages) list(ctx context.Context) error {
	found, err := i.query(ctx)
	if err != nil {
		return err
	}
	list := imageRows(found)
	rows := [][]string{{"IMAGE", "SIZE", "DIGEST", "PINNED"}}
	for _, row := range list {
		pinned := "no"
		if row.Pinned {
			pinned = "yes"
		}
		rows = append(rows, []string{row.Name, imageSize(row.Size), shortDigest(row.Digest), pinned})
	}
	i.show(list, table(rows))
	return nil
}

// query returns the images of the node.
func (i nodeImages) query(ctx context.Context) ([]criclient.Image, error) {
	text, code, err := output(ctx, i.n, nodeexec.Request{
		Argv: []string{criclient.Program, criclient.Images, runtime.Socket(i.n.Config())}, Stderr: i.stderr,
	})
	if err != nil {
		return nil, i.hintNotRunning(err)
	}
	if code != 0 {
		return nil, fmt.Errorf("list images: %s exited with code %d, see its output above", criclient.Program, code)
	}
	var found []criclient.Image
	if err := json.Unmarshal([]byte(text), &found); err != nil {
		return nil, fmt.Errorf("list images: read the output of %s: %w", criclient.Program, err)
	}
	return found, nil
}

// output runs a program inside the node and returns its standard output and exit code.
func output(ctx context.Context, n executor, req nodeexec.Request) (string, int, error) {
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
	req.Stdout, req.ForwardSignals = w, true
	code, err := n.Exec(ctx, req)
	_ = w.Close() // ends the reader
	return <-text, code, err
}

// imageRows returns a row for each name, sorted. An image without a name, only with digests, is not listed.
func imageRows(found []criclient.Image) []image {
	list := []image{}
	for _, i := range found {
		for _, name := range i.Names {
			list = append(list, image{Name: name, Digest: i.Digest, Size: i.Size, Pinned: i.Pinned})
		}
	}
	slices.SortFunc(list, func(x, y image) int { return strings.Compare(x.Name, y.Name) })
	return list
}

// change runs a command of the helper program for the image store, and returns its result.
func (i nodeImages) change(ctx context.Context, command string, request any, stdin *os.File) (*criclient.StoreResult, error) {
	argv, err := criclient.StoreCommand(command, runtime.Socket(i.n.Config()), request)
	if err != nil {
		return nil, err
	}
	text, code, err := output(ctx, i.n, nodeexec.Request{Argv: argv, Stdin: stdin, Stderr: i.stderr})
	if err != nil {
		return nil, i.hintNotRunning(err)
	}
	if code != 0 {
		return nil, fmt.Errorf("change images: %s exited with code %d, see its output above", criclient.Program, code)
	}
	return criclient.ReadStoreResult([]byte(text))
}

// requireStore returns an error if the node's runtime is not containerd. instead is a command that does the same inside the node; without
// it, the error has the command that imports an archive.
func (i nodeImages) requireStore(instead string) error {
	rt := runtime.Of(i.n.Config())
	if rt.HasImageStore() {
		return nil
	}
	return errdefs.Config("change images: supported with containerd only, but the node's runtime is %s (cri.runtime)", i.n.Config().CRI.Runtime).
		Hint(i.command("exec -- " + cmp.Or(instead, rt.ManualImport())))
}

// showChanged prints images as changed: "imported NAME (SIZE)".
func (i nodeImages) showChanged(verb string, images []criclient.Image) {
	var text strings.Builder
	for _, image := range images {
		for _, name := range image.Names {
			fmt.Fprintf(&text, "%s %s (%s)\n", verb, name, imageSize(image.Size))
		}
	}
	i.show(imageRows(images), text.String())
}

func (i nodeImages) remove(ctx context.Context, names []string, force bool) error {
	if err := i.requireStore("crictl rmi NAME"); err != nil {
		return err
	}
	complete := make([]string, len(names))
	for k, name := range names {
		c, err := criclient.CompleteName(name)
		if err != nil {
			return errdefs.Class(errdefs.ErrConfig, err)
		}
		bundled := []string{i.n.Config().Containerd.PauseImage, i.n.Config().ControlPlane.CoreDNSImage}
		if slices.Contains(bundled, c) && !force {
			return errdefs.Config("remove image %s: the node itself needs it", c)
		}
		complete[k] = c
	}
	r, err := i.change(ctx, criclient.RemoveImages, criclient.RemoveRequest{Names: complete, Force: force}, nil)
	if err != nil {
		return err
	}
	i.showChanged("removed", r.Images)
	return i.faults("remove image", "", r.Faults)
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
