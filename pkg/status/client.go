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

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/status/localsock"
)

// Client asks a node through its socket. A socket that is missing, that nobody serves or whose server goes away in the
// middle gives an error of class errdefs.ErrNotRunning. Runs in: parent or either.
type Client struct {
	socket string
	http   *http.Client
}

// NewClient returns a client of the socket at path. It connects when it is used. Call Close after the last use.
func NewClient(path string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}
	return &Client{socket: path, http: &http.Client{Transport: &http.Transport{DialContext: dial}}}
}

// Close drops idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Status returns the picture now.
func (c *Client) Status(ctx context.Context) (*Status, error) { return c.status(ctx, nil) }

// WaitStatus returns as soon as the picture's ResourceVersion differs from since. 0 returns at once. It returns an
// unchanged picture when the server's own limit passes first; just ask again.
func (c *Client) WaitStatus(ctx context.Context, since uint64) (*Status, error) {
	return c.status(ctx, url.Values{"wait": {strconv.FormatUint(since, 10)}})
}

func (c *Client) status(ctx context.Context, q url.Values) (*Status, error) {
	body, err := c.do(ctx, http.MethodGet, "/v1/status", q, nil)
	if err != nil {
		return nil, fmt.Errorf("ask node for its status: %w", err)
	}
	defer body.Close()
	s := &Status{}
	if err := json.NewDecoder(body).Decode(s); err != nil {
		return nil, fmt.Errorf("read node status: %w", c.gone(err))
	}
	return s, nil
}

// Events calls f for each event that the node keeps and, with follow, for each new one until ctx ends (nil is returned),
// the node ends (nil too) or f returns an error.
func (c *Client) Events(ctx context.Context, follow bool, f func(Event) error) error {
	body, err := c.do(ctx, http.MethodGet, "/v1/events", url.Values{"follow": {strconv.FormatBool(follow)}}, nil)
	if err != nil {
		return fmt.Errorf("ask node for its events: %w", err)
	}
	defer body.Close()
	dec := json.NewDecoder(body)
	for {
		var e Event
		if err := dec.Decode(&e); err != nil {
			if follow && (ctx.Err() != nil || errors.Is(c.gone(err), errdefs.ErrNotRunning)) || errors.Is(err, io.EOF) {
				return nil
			}
			return fmt.Errorf("read node events: %w", c.gone(err))
		}
		if err := f(e); err != nil {
			return err
		}
	}
}

// Stop asks the node to stop and returns once it has begun to.
func (c *Client) Stop(ctx context.Context, reason string) error {
	return c.post(ctx, "stop node", "/v1/stop", stopRequest{Reason: reason})
}

// Restart asks the node to restart a component and returns once that has begun.
func (c *Client) Restart(ctx context.Context, component string) error {
	return c.post(ctx, "restart "+component, "/v1/components/"+component+"/restart", nil)
}

// AddForward makes a forward by hand and returns its owner in Status.Ports; see Control.
func (c *Client) AddForward(ctx context.Context, forward string) (owner string, err error) {
	return c.forward(ctx, http.MethodPost, "add forward "+forward, forward)
}

// RemoveForward takes a forward made by hand back and returns its owner.
func (c *Client) RemoveForward(ctx context.Context, forward string) (owner string, err error) {
	return c.forward(ctx, http.MethodDelete, "remove forward "+forward, forward)
}

func (c *Client) forward(ctx context.Context, method, what, forward string) (string, error) {
	b, err := json.Marshal(forwardRequest{forward})
	if err != nil {
		return "", fmt.Errorf("%s: %w", what, err)
	}
	body, err := c.do(ctx, method, "/v1/forwards", nil, b)
	if err != nil {
		return "", fmt.Errorf("%s: %w", what, err)
	}
	defer body.Close()
	var answer forwardAnswer
	if err := json.NewDecoder(body).Decode(&answer); err != nil {
		return "", fmt.Errorf("%s: %w", what, c.gone(err))
	}
	return answer.Owner, nil
}

func (c *Client) post(ctx context.Context, what, path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	body, err := c.do(ctx, http.MethodPost, path, nil, b)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return body.Close()
}

func (c *Client) do(ctx context.Context, method, path string, q url.Values, b []byte) (io.ReadCloser, error) {
	u := url.URL{Scheme: "http", Host: "node", Path: path, RawQuery: q.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.gone(err)
	}
	if resp.StatusCode < http.StatusBadRequest {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	report := &errdefs.Report{}
	if err := json.NewDecoder(resp.Body).Decode(report); err != nil || report.Message == "" {
		return nil, fmt.Errorf("node answered %s", resp.Status)
	}
	return nil, report.Err()
}

// gone gives err, of sending a request or reading its answer, the class ErrNotRunning when it says that the server is
// not there or went away.
func (c *Client) gone(err error) error {
	var op *net.OpError
	var u *url.Error
	request := errors.As(err, &u)
	if request {
		err = u.Err // its own text repeats a URL that nobody can open
	}
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case localsock.NotRunning(err):
		return errdefs.Class(errdefs.ErrNotRunning, fmt.Errorf("nobody answers at %s", c.socket))
	case errors.As(err, &op) && op.Op == "dial":
		return err
	// What else a request can end with is a connection that broke; not all of it has a type (net/http, errServerClosedIdle).
	case request, op != nil, errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errdefs.Class(errdefs.ErrNotRunning, errors.New("the node ended meanwhile"))
	}
	return err
}
