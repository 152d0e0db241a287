package kubeapi

import (
	"context"
	"net/http"
	"time"
)

// readyAttempt bounds a single request, so that a server that accepts a connection and does not respond is retried.
const readyAttempt = 5 * time.Second

// Ready requests /readyz once. Its error names the failing checks.
func (c *conn) Ready(ctx context.Context) error {
	return c.do(ctx, request{method: http.MethodGet, path: "/readyz"}, nil)
}

// WaitReady waits until /readyz succeeds. If ctx ends, it returns an error with the last reason (class errdefs.ErrTimeout
// for a deadline). The first retry is after 10 ms, later ones after at most 100 ms.
func (c *conn) WaitReady(ctx context.Context) error {
	delays := c.readyBackoff
	var last error
	for {
		one, cancel := context.WithTimeout(ctx, readyAttempt)
		err := c.Ready(one)
		cancel()
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		if !pause(ctx, &delays, nil) {
			return timedOut(ctx, "wait for API server "+c.Server(), last)
		}
	}
}
