package status

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/rootlessnode/rootlessnode/internal/localsock"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// Client sends requests to a node's status socket. Its methods return an error of class errdefs.ErrNotRunning if the socket does not
// exist, no process serves it, or the node ends during the request; of class errdefs.ErrTimeout if the node role does not respond in
// time, for example because it is stopped with SIGSTOP.
//
// Runs in: parent or either.
type Client struct {
	socket string
	limit  time.Duration
	// poll is for requests whose response comes up to pollTime later.
	http, poll *http.Client
}

const (
	// responseLimit is the time within which the node role must respond.
	responseLimit = 10 * time.Second
	// pollTime is the time after which the server responds to WaitStatus without a change.
	pollTime = 20 * time.Second
)

// NewClient returns a client for the socket at path. It connects at the first request. The caller must call Close after the last
// use.
func NewClient(path string) *Client { return newClient(path, responseLimit) }

func newClient(path string, limit time.Duration) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}
	within := func(d time.Duration) *http.Client {
		return &http.Client{Transport: &http.Transport{DialContext: dial, ResponseHeaderTimeout: d}}
	}
	return &Client{socket: path, limit: limit, http: within(limit), poll: within(pollTime + limit)}
}

// Close closes idle connections.
func (c *Client) Close() {
	c.http.CloseIdleConnections()
	c.poll.CloseIdleConnections()
}

// Status returns the current status.
func (c *Client) Status(ctx context.Context) (*Status, error) { return c.status(ctx, c.http, nil) }

// WaitStatus returns the status as soon as its ResourceVersion differs from since; with 0 it returns immediately. If the server's
// time limit for requests passes first, it returns the unchanged status, and the caller should call it again.
func (c *Client) WaitStatus(ctx context.Context, since uint64) (*Status, error) {
	return c.status(ctx, c.poll, url.Values{"wait": {strconv.FormatUint(since, 10)}, "timeout": {pollTime.String()}})
}

// Metrics returns the metrics of the node in the text format of Prometheus.
func (c *Client) Metrics(ctx context.Context) ([]byte, error) {
	body, err := c.do(ctx, c.http, http.MethodGet, "/metrics", nil, nil)
	if err != nil {
		return nil, fmt.Errorf("get metrics: %w", err)
	}
	defer body.Close()
	text, err := io.ReadAll(body)
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", c.classify(err))
	}
	return text, nil
}

func (c *Client) status(ctx context.Context, within *http.Client, q url.Values) (*Status, error) {
	body, err := c.do(ctx, within, http.MethodGet, "/v1/status", q, nil)
	if err != nil {
		return nil, fmt.Errorf("get node status: %w", err)
	}
	defer body.Close()
	s := &Status{}
	if err := json.NewDecoder(body).Decode(s); err != nil {
		return nil, fmt.Errorf("read node status: %w", c.classify(err))
	}
	return s, nil
}

// Events calls f for each event that the node has kept and, if follow is set, for each new event. It returns nil when ctx or the node
// ends while it follows, or the error of f.
func (c *Client) Events(ctx context.Context, follow bool, f func(Event) error) error {
	body, err := c.do(ctx, c.http, http.MethodGet, "/v1/events", url.Values{"follow": {strconv.FormatBool(follow)}}, nil)
	if err != nil {
		return fmt.Errorf("get node events: %w", err)
	}
	defer body.Close()
	dec := json.NewDecoder(body)
	for {
		var e Event
		if err := dec.Decode(&e); err != nil {
			if follow && (ctx.Err() != nil || errors.Is(c.classify(err), errdefs.ErrNotRunning)) || errors.Is(err, io.EOF) {
				return nil
			}
			return fmt.Errorf("read node events: %w", c.classify(err))
		}
		if err := f(e); err != nil {
			return err
		}
	}
}

// Stop starts the stop of the node and returns without waiting for its end. reason is shown in the status and the events. podLimit is
// as for Control.Stop.
func (c *Client) Stop(ctx context.Context, reason string, podLimit time.Duration) error {
	return c.post(ctx, "stop node", "/v1/stop", stopRequest{Reason: reason, PodLimit: podLimit})
}

// Restart starts the restart of a component and returns without waiting for its end. It returns an error of class errdefs.ErrConfig if
// there is no such component.
func (c *Client) Restart(ctx context.Context, component string) error {
	return c.post(ctx, "restart "+component, "/v1/components/"+component+"/restart", nil)
}

// Reload applies a complete config and returns the components that the node restarts because of it, without waiting for them. See
// Control.Reload.
func (c *Client) Reload(ctx context.Context, config json.RawMessage) (restarted []string, err error) {
	body, err := c.do(ctx, c.http, http.MethodPost, "/v1/reload", nil, config)
	if err != nil {
		return nil, fmt.Errorf("reload the config: %w", err)
	}
	defer body.Close()
	var resp reloadResponse
	if err := json.NewDecoder(body).Decode(&resp); err != nil {
		return nil, fmt.Errorf("reload the config: %w", c.classify(err))
	}
	return resp.Restarted, nil
}

// AddForward adds a manual forward and returns the Owner of its ports in Status.Ports. See Control.AddForward.
func (c *Client) AddForward(ctx context.Context, forward string) (owner string, err error) {
	return c.forward(ctx, http.MethodPost, "add forward "+forward, forward)
}

// RemoveForward removes a manual forward and returns the Owner of its ports. See Control.RemoveForward.
func (c *Client) RemoveForward(ctx context.Context, forward string) (owner string, err error) {
	return c.forward(ctx, http.MethodDelete, "remove forward "+forward, forward)
}

func (c *Client) forward(ctx context.Context, method, operation, forward string) (string, error) {
	b, err := json.Marshal(forwardRequest{forward})
	if err != nil {
		return "", fmt.Errorf("%s: %w", operation, err)
	}
	body, err := c.do(ctx, c.http, method, "/v1/forwards", nil, b)
	if err != nil {
		return "", fmt.Errorf("%s: %w", operation, err)
	}
	defer body.Close()
	var resp forwardResponse
	if err := json.NewDecoder(body).Decode(&resp); err != nil {
		return "", fmt.Errorf("%s: %w", operation, c.classify(err))
	}
	return resp.Owner, nil
}

func (c *Client) post(ctx context.Context, operation, path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("%s: %w", operation, err)
	}
	body, err := c.do(ctx, c.http, http.MethodPost, path, nil, b)
	if err != nil {
		return fmt.Errorf("%s: %w", operation, err)
	}
	return body.Close()
}

func (c *Client) do(ctx context.Context, within *http.Client, method, path string, q url.Values, b []byte) (io.ReadCloser, error) {
	u := url.URL{Scheme: "http", Host: "node", Path: path, RawQuery: q.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	resp, err := within.Do(req)
	var slow net.Error
	if ctx.Err() == nil && errors.As(err, &slow) && slow.Timeout() {
		return nil, errdefs.Timeout("no response from the node role on %s within %v", c.socket, c.limit).Do(errdefs.ShowLogs, "node").Do(errdefs.Stop)
	}
	if err != nil {
		return nil, c.classify(err)
	}
	if resp.StatusCode < http.StatusBadRequest {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	report := &errdefs.Report{}
	if err := json.NewDecoder(resp.Body).Decode(report); err != nil || report.Message == "" {
		return nil, fmt.Errorf("unexpected HTTP status %s", resp.Status)
	}
	return nil, report.Err()
}

// classify adds the class ErrNotRunning to err, an error of sending a request or reading its response, if err means that the server is
// not running or has ended.
func (c *Client) classify(err error) error {
	var op *net.OpError
	var u *url.Error
	request := errors.As(err, &u)
	if request {
		err = u.Err // the text of url.Error contains the placeholder URL
	}
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case localsock.NotRunning(err):
		return errdefs.NotRunning("no process serves %s", c.socket)
	case errors.As(err, &op) && op.Op == "dial":
		return err
	// Any other error of a request is a broken connection. Some of these errors have no type (net/http, errServerClosedIdle).
	case request, op != nil, errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errdefs.NotRunning("the node ended during the request")
	}
	return err
}
