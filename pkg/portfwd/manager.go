package portfwd

import (
	"context"
	"net"
	"net/http"
	"time"

	"github.com/rootless-containers/rootlesskit/v3/pkg/api"
	"github.com/rootless-containers/rootlesskit/v3/pkg/api/client"
	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
)

// Manager is the part of RootlessKit's port manager that the Forwarder uses. It must be safe for concurrent use.
type Manager interface {
	AddPort(ctx context.Context, spec port.Spec) (*port.Status, error)
	ListPorts(ctx context.Context) ([]port.Status, error)
	RemovePort(ctx context.Context, id int) error
	Info(ctx context.Context) (*api.Info, error)
}

const (
	dialTimeout = 5 * time.Second
	// idleTimeout is short because each idle connection uses a file descriptor in RootlessKit's parent, and dialing a socket
	// is cheap.
	idleTimeout = 5 * time.Second
)

type remote struct {
	port.Manager
	c client.Client
}

func (r remote) Info(ctx context.Context) (*api.Info, error) { return r.c.Info(ctx) }

// Dial returns the Manager behind RootlessKit's API socket, and a function that closes its idle connections. It does not
// connect yet, and the socket need not exist; calls fail until it does.
func Dial(apiSock string) (m Manager, closeIdle func()) {
	d := net.Dialer{Timeout: dialTimeout}
	// RootlessKit's own constructor keeps two connections and requires that the socket exists.
	c := client.NewWithHTTPClient(&http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return d.DialContext(ctx, "unix", apiSock)
		},
		MaxIdleConnsPerHost: DefaultConcurrency,
		IdleConnTimeout:     idleTimeout,
	}})
	return remote{Manager: c.PortManager(), c: c}, func() { _ = c.Close() }
}
