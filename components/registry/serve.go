package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/distribution/distribution/v3/configuration"
	"github.com/distribution/distribution/v3/registry/handlers"
	"github.com/distribution/distribution/v3/registry/storage"
	"github.com/distribution/distribution/v3/registry/storage/driver/factory"
	_ "github.com/distribution/distribution/v3/registry/storage/driver/filesystem"
	"github.com/sirupsen/logrus"
)

const (
	headerTimeout = 10 * time.Second
	// stopTimeout is how long running requests may take after SIGTERM.
	stopTimeout = 5 * time.Second
)

// settings returns upstream's configuration.
func settings(o options) (*configuration.Configuration, error) {
	text := fmt.Sprintf(`
version: 0.1
log: {level: %s, accesslog: {disabled: true}}
storage:
  filesystem: {rootdirectory: %q}
  delete: {enabled: true}
  cache: {blobdescriptor: inmemory}
http: {secret: %s}
`, strings.Replace(o.level, "warning", "warn", 1), o.dir, rand.Text())
	c, err := configuration.Parse(strings.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("build the configuration: %w", err)
	}
	return c, nil
}

// serve serves the registry until ctx ends.
func serve(ctx context.Context, o options) error {
	c, err := settings(o)
	if err != nil {
		return err
	}
	level, err := logrus.ParseLevel(o.level)
	if err != nil {
		return err
	}
	logrus.SetLevel(level)
	server := &http.Server{Handler: handlers.NewApp(ctx, c), ReadHeaderTimeout: headerTimeout}
	done := make(chan error, len(o.listen))
	for _, address := range o.listen {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address.String())
		if err != nil {
			return errors.Join(err, server.Close())
		}
		go func() { done <- server.Serve(&filter{l, o.allow}) }()
	}
	select {
	case err := <-done:
		return errors.Join(err, server.Close())
	case <-ctx.Done():
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	return server.Shutdown(late)
}

// filter is a listener that closes the connections of clients outside of loopback and the
// allowed networks.
type filter struct {
	net.Listener
	allow []netip.Prefix
}

func (f *filter) Accept() (net.Conn, error) {
	for {
		c, err := f.Listener.Accept()
		if err != nil {
			return nil, err
		}
		client, err := netip.ParseAddrPort(c.RemoteAddr().String())
		if err == nil && f.allows(client.Addr().Unmap()) {
			return c, nil
		}
		logrus.WithField("client", c.RemoteAddr()).Warn("refused a client that is not on this host")
		_ = c.Close() // a refused connection; the error does not matter
	}
}

func (f *filter) allows(client netip.Addr) bool {
	return client.IsLoopback() || slices.ContainsFunc(f.allow, func(p netip.Prefix) bool { return p.Contains(client) })
}

// collectGarbage removes the blobs that no image uses.
func collectGarbage(ctx context.Context, o options) error {
	c, err := settings(o)
	if err != nil {
		return err
	}
	driver, err := factory.Create(ctx, c.Storage.Type(), c.Storage.Parameters())
	if err != nil {
		return fmt.Errorf("open %s: %w", o.dir, err)
	}
	registry, err := storage.NewRegistry(ctx, driver)
	if err != nil {
		return fmt.Errorf("open %s: %w", o.dir, err)
	}
	return storage.MarkAndSweep(ctx, driver, registry, storage.GCOpts{RemoveUntagged: true})
}
