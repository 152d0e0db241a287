package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/rootlessnode/rootlessnode/internal/criclient"
	"github.com/rootlessnode/rootlessnode/internal/registryauth"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

func newImagesPull(a *app) *cobra.Command {
	return a.withOutput(&cobra.Command{
		Use:   "pull NAME...",
		Short: "Pull images from their registries before pods need them",
		Long: `Pull images into the node, with the registries of the configuration and the account's
logins of docker and podman. Unlike images that the node pulls for pods, they are kept
until "rootlessnode images remove".`,
		Example: `  rootlessnode images pull docker.io/library/busybox:1.37`,
		Args:    arguments(1, -1),
		RunE:    withNode(a, func(ctx context.Context, n imageNode, names []string) error { return nodeImages{a, n}.pull(ctx, names) }),
	})
}

func (i nodeImages) pull(ctx context.Context, names []string) error {
	if err := i.requireStore("crictl pull NAME"); err != nil {
		return err
	}
	complete := make([]string, len(names))
	for k, name := range names {
		var err error
		if complete[k], err = criclient.CompleteName(name); err != nil {
			return errdefs.Class(errdefs.ErrConfig, fmt.Errorf("pull image: %w", err))
		}
	}
	var pulled []criclient.Image
	var faults []error
	for _, name := range complete {
		r, err := i.pullOne(ctx, name)
		if err != nil {
			return errors.Join(errors.Join(faults...), err)
		}
		pulled = append(pulled, r.Images...)
		faults = append(faults, i.faults("pull "+name, "", r.Faults))
	}
	i.showChanged("pulled", pulled)
	return errors.Join(faults...)
}

// pullOne pulls an image with the logins of the account, which the helper program gets on standard input.
func (i nodeImages) pullOne(ctx context.Context, name string) (*criclient.StoreResult, error) {
	account := registryauth.Server{Finder: registryauth.Finder{Getenv: i.env}, Registries: i.n.Config().Registries}
	found, err := account.Logins(ctx, name)
	if err != nil {
		i.warn(err) // the registry may not need a login
	}
	logins := make([]criclient.Login, len(found))
	for k, l := range found {
		logins[k] = criclient.Login(l)
	}
	text, err := json.Marshal(logins)
	if err != nil {
		return nil, fmt.Errorf("encode logins: %w", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer func() { _ = r.Close() }() // it was only read
	go func() {
		_, _ = w.Write(text) // fails if the helper program has ended
		_ = w.Close()
	}()
	return i.change(ctx, criclient.PullImage, criclient.PullRequest{Name: name}, r)
}
