package parent

import (
	"context"
	"fmt"
	"os"

	"github.com/rootlessnode/rootlessnode/internal/localsock"
	"github.com/rootlessnode/rootlessnode/internal/registryauth"
)

// serveCredentials serves the account's logins at registries to the kubelet, until stop is called.
func (r *run) serveCredentials() (stop func(), err error) {
	if !r.Config.Kubelet.RegistryLogins {
		return func() {}, nil
	}
	l, err := localsock.Listen(r.Runtime.CredentialsSocket())
	if err != nil {
		return nil, fmt.Errorf("listen for requests for logins at registries: %w", err)
	}
	server := registryauth.Server{Finder: registryauth.Finder{Getenv: os.Getenv}, Registries: r.Config.Registries, Log: r.Log}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(ctx, localsock.Own(l)); err != nil {
			r.Log.WithError(err).Warn("serve logins at registries; images that need a login can no longer be pulled")
		}
	}()
	return func() { cancel(); <-done }, nil
}

// registryPorts returns the ports of the registries at which the account is logged in.
func (r *run) registryPorts() []int {
	if !r.Config.Kubelet.RegistryLogins {
		return nil
	}
	return registryauth.Finder{Getenv: os.Getenv}.Ports()
}
