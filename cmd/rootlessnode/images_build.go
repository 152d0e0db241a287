package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/internal/criclient"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// buildOptions are the flags of images build.
type buildOptions struct {
	with, file string
	tags       []string
	// more are arguments for the engine.
	more []string
}

func newImagesBuild(a *app) *cobra.Command {
	var o buildOptions
	cmd := &cobra.Command{
		Use:   "build -t NAME [-f FILE] CONTEXT [-- ARG...]",
		Short: "Build an image with podman, docker, nerdctl or buildah, and load it",
		Long: `Build an image with the podman, docker, nerdctl or buildah of the account, and load it
into the node. Arguments after -- are passed to that program.`,
		Example: `  rootlessnode images build -t app:dev .
  rootlessnode images build -t app:dev . -- --build-arg VERSION=2`,
		Args: func(cmd *cobra.Command, args []string) error {
			if dash := cmd.ArgsLenAtDash(); dash >= 0 {
				args, o.more = args[:dash], args[dash:]
			}
			return arguments(1, 1)(cmd, args)
		},
		RunE: withNode(a, func(ctx context.Context, n imageNode, args []string) error {
			return nodeImages{a, n}.build(ctx, o, args[0])
		}),
	}
	cmd.Flags().StringArrayVarP(&o.tags, "tag", "t", nil, "`NAME` of the image; may be repeated")
	cmd.Flags().StringVarP(&o.file, "file", "f", "", "the Dockerfile or Containerfile")
	cmd.Flags().StringVar(&o.with, "with", "", "`PROGRAM` that builds the image (default: the first that is installed)")
	completeValues(cmd, "with", enginePrograms()...)
	return cmd
}

func (i nodeImages) build(ctx context.Context, o buildOptions, dir string) error {
	if err := i.requireStore(""); err != nil {
		return err
	}
	if len(o.tags) == 0 {
		return errdefs.Config("build image: it needs a name").Hint(i.command("images build -t app:dev ."))
	}
	for _, tag := range o.tags {
		if _, err := criclient.CompleteName(tag); err != nil {
			return errdefs.Class(errdefs.ErrConfig, fmt.Errorf("build image: %w", err))
		}
	}
	found, err := selectEngines("with", o.with)
	if err != nil {
		return err
	}
	e := found[0]
	args := slices.Clone(e.build)
	for _, tag := range o.tags {
		args = append(args, "--tag", tag)
	}
	if o.file != "" {
		args = append(args, "--file", o.file)
	}
	args = append(append(args, o.more...), dir)
	cmd := exec.CommandContext(ctx, e.program, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = i.stdin, i.stderr, i.stderr, outputDelay
	var exit *exec.ExitError
	if err := cmd.Run(); errors.As(err, &exit) {
		return fmt.Errorf("build image: %s exited with code %d, see its output above", e.program, exit.ExitCode())
	} else if err != nil {
		return fmt.Errorf("build image: %w", err)
	}
	return i.load(ctx, e.program, o.tags)
}
