package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/nodeexec"
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

// ctr returns the command line of containerd's client for the namespace of the kubelet's images.
func ctr(args ...string) []string {
	return append([]string{"ctr", "--namespace", "k8s.io", "images"}, args...)
}

// needsContainerd returns an error if the node's runtime is not containerd, because operation uses containerd's client. The
// hint is instead, the command for other runtimes.
func needsContainerd(n handle, operation, instead string) error {
	runtime := n.Config().CRI.Runtime
	if runtime == config.RuntimeContainerd {
		return nil
	}
	if runtime == config.RuntimeExternal && !strings.Contains(instead, "crictl") {
		instead = "use the client of the external runtime: rootlessnode exec -- PROGRAM"
	}
	err := fmt.Errorf("%s: supported with containerd only, but the node's runtime is %s (cri.runtime)", operation, runtime)
	return errdefs.WithHint(errdefs.Class(errdefs.ErrConfig, err), instead)
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
			faults = append(faults, errdefs.Class(errdefs.ErrConfig, fmt.Errorf("open image archive: %w", err)))
			continue
		}
		opened = append(opened, f)
	}
	if len(faults) > 0 {
		return errors.Join(faults...)
	}
	if err := needsContainerd(n, "import images", "rootlessnode exec -- skopeo copy docker-archive:FILE containers-storage:NAME"); err != nil {
		return err
	}
	for i, f := range opened {
		err := execute(ctx, a, n, nodeexec.Request{Argv: ctr("import", "-"), Stdin: f})
		var code exitCode
		switch {
		case errors.As(err, &code):
			faults = append(faults, fmt.Errorf("import %s: ctr exited with code %d, see its output above", files[i], int(code)))
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
	if err := needsContainerd(n, "list images", "rootlessnode exec -- crictl images"); err != nil {
		return err
	}
	text, code, err := output(ctx, n, ctr("list"), a.stderr)
	if err != nil {
		return a.hintNotRunning(err)
	}
	if code != 0 {
		return fmt.Errorf("list images: ctr exited with code %d, see its output above", code)
	}
	list := parseImages(text)
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

// parseImages reads the table of `ctr images list`: REF TYPE DIGEST SIZE UNIT PLATFORMS LABELS. Images are stored under
// their tag, under NAME@DIGEST and under the id that the kubelet uses; only the tags are listed.
func parseImages(text string) []image {
	list := []image{}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		const ref, digest, size, unit = 0, 2, 3, 4
		if len(f) <= unit || !strings.HasPrefix(f[digest], "sha256:") {
			continue
		}
		if strings.HasPrefix(f[ref], "sha256:") || strings.Contains(f[ref], "@sha256:") {
			continue
		}
		list = append(list, image{Name: f[ref], Digest: f[digest], Size: f[size] + " " + f[unit]})
	}
	slices.SortFunc(list, func(x, y image) int { return strings.Compare(x.Name, y.Name) })
	return list
}

func shortDigest(d string) string {
	const shown = len("sha256:") + 12
	return d[:min(len(d), shown)]
}
