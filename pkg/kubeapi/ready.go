package kubeapi

import (
	"context"
	"net/http"
	"time"
)

// readyAttempt bounds a single question, so that a server which accepts and then says nothing is asked again.
const readyAttempt = 5 * time.Second

// Ready asks /readyz once. Its error names the checks that do not pass yet.
func (c *Client) Ready(ctx context.Context) error {
	return c.do(ctx, request{method: http.MethodGet, path: "/readyz"}, nil)
}

// WaitReady returns nil as soon as /readyz says ok, and otherwise an error with the last reason when ctx ends (class
// errdefs.ErrTimeout if by its deadline). It asks again after 10 ms at first and never waits more than 100 ms.
func (c *Client) WaitReady(ctx context.Context) error {
	w := waiter{pace: c.readyPace}
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
		if !w.wait(ctx, nil) {
			return timedOut(ctx, "wait for API server "+c.Server(), last)
		}
	}
}
