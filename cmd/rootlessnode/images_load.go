package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/internal/criclient"
	"github.com/rootlessnode/rootlessnode/internal/proc"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// engine is a program of the host that builds images and has a store of them. The functions return its arguments.
type engine struct {
	program string
	// inspect prints a JSON list of engineImage.
	inspect func(name string) []string
	// save writes an image as an archive to standard output.
	save func(name string) []string
	// build begins a build; files and tags follow.
	build []string
}

// engineImage is an image of an engine. The engines have two words for its names.
type engineImage struct {
	ID       string `json:"Id"`
	RepoTags []string
	Names    []string
}

// engines are the known engines, in the order in which they are searched.
var engines = []engine{
	{"podman", dockerInspect, func(name string) []string { return []string{"save", "--quiet", "--format", "docker-archive", name} }, []string{"build"}},
	{"docker", dockerInspect, func(name string) []string { return []string{"save", name} }, []string{"build"}},
	{"nerdctl", dockerInspect, func(name string) []string { return []string{"save", name} }, []string{"build"}},
	{
		"buildah", func(name string) []string { return []string{"images", "--json", name} },
		func(name string) []string { return []string{"push", "--quiet", name, "docker-archive:/dev/stdout"} }, []string{"build"},
	},
}

func dockerInspect(name string) []string { return []string{"image", "inspect", name} }

// enginePrograms are the values of --from and --with.
func enginePrograms() []string {
	var names []string
	for _, e := range engines {
		names = append(names, e.program)
	}
	return names
}

func newImagesLoad(a *app) *cobra.Command {
	var from string
	cmd := &cobra.Command{
		Use:   "load NAME...",
		Short: "Load images from podman, docker, nerdctl or buildah",
		Long: `Load images of the account's podman, docker, nerdctl or buildah into the node, so that
pods can use them without a registry. An image that the node has already is not copied
again. Pods can use the name that you give, and the complete name that the program has
for the image.`,
		Example: `  podman build -t app:dev . && rootlessnode images load app:dev
  rootlessnode images load --from docker my/app:dev`,
		Args: arguments(1, -1),
		RunE: withNode(a, func(ctx context.Context, n imageNode, names []string) error {
			return nodeImages{a, n}.load(ctx, from, names)
		}),
	}
	cmd.Flags().StringVar(&from, "from", "", "`PROGRAM` that has the images: "+strings.Join(enginePrograms(), ", ")+" (default: the first that has the image)")
	completeValues(cmd, "from", enginePrograms()...)
	return a.withOutput(cmd)
}

// selectEngines returns the installed engines, or the one with the given name.
func selectEngines(flag, name string) ([]engine, error) {
	if name != "" && !slices.Contains(enginePrograms(), name) {
		return nil, errdefs.Config("--%s: unknown program %q", flag, name).Hint("use one of: " + strings.Join(enginePrograms(), ", "))
	}
	var found []engine
	for _, e := range engines {
		if name != "" && e.program != name {
			continue
		}
		if _, err := exec.LookPath(e.program); err == nil {
			found = append(found, e)
		}
	}
	if len(found) == 0 {
		return nil, errdefs.Preflight("find %s: not installed", cmp.Or(name, strings.Join(enginePrograms(), ", "))).
			Hint("apt-get install podman    # as root")
	}
	return found, nil
}

func (i nodeImages) load(ctx context.Context, from string, names []string) error {
	if err := i.requireStore(""); err != nil {
		return err
	}
	found, err := selectEngines("from", from)
	if err != nil {
		return err
	}
	have, err := i.query(ctx)
	if err != nil {
		return err
	}
	var loaded []criclient.Image
	var faults []error
	for _, name := range names {
		r, err := i.loadOne(ctx, found, have, name)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		loaded = append(loaded, r.Images...)
		faults = append(faults, i.faults("load "+name, "", r.Faults))
	}
	i.showChanged("loaded", loaded)
	return errors.Join(faults...)
}

// loadOne loads an image from the first engine that has it. If the node has it, the image only gets the names.
func (i nodeImages) loadOne(ctx context.Context, from []engine, have []criclient.Image, name string) (*criclient.StoreResult, error) {
	e, image, err := findImage(ctx, from, name)
	if err != nil {
		return nil, err
	}
	names, err := image.namesFor(name)
	if err != nil {
		return nil, err
	}
	for _, h := range have {
		if strings.TrimPrefix(h.ID, digestPrefix) == strings.TrimPrefix(image.ID, digestPrefix) {
			return i.change(ctx, criclient.TagImage, criclient.TagRequest{ID: h.ID, Names: names}, nil)
		}
	}
	return i.saveInto(ctx, e, name, names)
}

const digestPrefix = "sha256:"

// findImage returns the first engine that has an image with a name or an ID.
func findImage(ctx context.Context, from []engine, name string) (engine, engineImage, error) {
	var reasons []string
	for _, e := range from {
		var stderr bytes.Buffer
		cmd := exec.CommandContext(ctx, e.program, e.inspect(name)...)
		cmd.Stderr, cmd.WaitDelay = &stderr, outputDelay
		out, err := cmd.Output()
		var list []engineImage
		if err == nil {
			err = json.Unmarshal(out, &list)
		}
		switch {
		case ctx.Err() != nil:
			return engine{}, engineImage{}, context.Cause(ctx)
		case err == nil && len(list) > 0:
			return e, list[0], nil
		case err != nil:
			reasons = append(reasons, fmt.Sprintf("%s: %v", e.program, proc.Failure(err, stderr.Bytes())))
		default:
			reasons = append(reasons, e.program+": not found")
		}
	}
	return engine{}, engineImage{}, errdefs.Errorf("load %s: no program has the image: %s", name, strings.Join(reasons, "; ")).
		Hint(from[0].program + " images")
}

// namesFor returns the complete names that an image gets in the node if it is loaded by a name or an ID: the name as pods complete it, and
// the names of the engine for the same short name, such as localhost/app:dev of podman for app:dev.
func (e engineImage) namesFor(name string) ([]string, error) {
	var names []string
	add := func(name string) error {
		complete, err := criclient.CompleteName(name)
		if err != nil {
			return errdefs.Class(errdefs.ErrConfig, fmt.Errorf("load image: %w", err))
		}
		if !slices.Contains(names, complete) {
			names = append(names, complete)
		}
		return nil
	}
	id := strings.TrimPrefix(e.ID, digestPrefix)
	byID := len(name) >= minID && strings.HasPrefix(id, strings.TrimPrefix(name, digestPrefix))
	if !byID {
		if err := add(name); err != nil {
			return nil, err
		}
	}
	short := name
	if !strings.Contains(name[strings.LastIndex(name, "/")+1:], ":") {
		short += ":latest"
	}
	for _, tag := range slices.Concat(e.RepoTags, e.Names) {
		if byID || tag == short || strings.HasSuffix(tag, "/"+short) {
			if err := add(tag); err != nil {
				return nil, err
			}
		}
	}
	if len(names) == 0 {
		return nil, errdefs.Config("load image %s: it has no name", name).Hint("podman tag " + name + " NAME:TAG")
	}
	return names, nil
}

// minID is the minimum length of an abbreviated ID that is not regarded as a name.
const minID = 8

// saveInto imports an image while its engine saves it.
func (i nodeImages) saveInto(ctx context.Context, e engine, name string, names []string) (*criclient.StoreResult, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }() // it was only read
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, e.program, e.save(name)...)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = w, &stderr, outputDelay
	err = cmd.Start()
	_ = w.Close() // the program has it
	if err != nil {
		return nil, fmt.Errorf("save %s: %w", name, err)
	}
	result, err := i.change(ctx, criclient.ImportImages, criclient.ImportRequest{Names: names}, r)
	_ = r.Close() // ends the program if the import failed
	saved := cmd.Wait()
	if err == nil && len(result.Faults) == 0 && saved == nil {
		return result, nil
	}
	if saved != nil && stderr.Len() > 0 {
		return nil, fmt.Errorf("save %s with %s: %w", name, e.program, proc.Failure(saved, stderr.Bytes()))
	}
	return result, err
}
