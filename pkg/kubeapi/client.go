package kubeapi

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

const (
	// DefaultUserAgent is sent when Options.UserAgent is empty.
	DefaultUserAgent = "rootlessnode"

	mimeJSON       = "application/json"
	mimeMergePatch = "application/merge-patch+json"
	// A strategic merge patch changes one condition of a list, by its type.
	mimeStrategicPatch = "application/strategic-merge-patch+json"
	mimeApplyPatch     = "application/apply-patch+yaml"

	// maxErrorBody bounds how much of a refusal's body is read.
	maxErrorBody = 64 << 10
)

// Options for New. The zero value is useful.
type Options struct {
	// UserAgent is what the API server's audit log shows; DefaultUserAgent if empty.
	UserAgent string
	// Log receives faults that are retried, at debug level, and at info level that a list had to be fetched anew because
	// the API server keeps no older changes (410 Gone). Nothing is logged if it is nil.
	Log logrus.FieldLogger
	// Date receives the server's clock, to the second, with each answer that tells it; called by whoever asks. An answer
	// of an insecure server proves nothing. May be nil.
	Date func(time.Time)
	// AsRoot: this process is root, and an account may have written the kubeconfig. Then the current context must come down to
	// data in the file: no name of another file and no proxy-url, unless the file and those that it names are root's
	// (hostinfo.RootOnly), and in no case a plugin. Files are read once.
	AsRoot bool
}

// Client talks to one API server with one identity. It is safe for concurrent use and holds no goroutine of its own.
type Client struct {
	http  *http.Client
	base  *url.URL
	agent string
	log   logrus.FieldLogger
	date  func(time.Time)
	// maxAnswer bounds what is read of one answer, in bytes.
	maxAnswer int64

	// Waits between attempts: readiness is asked for quickly since a starting API server answers within a second or
	// two; a watch that was refused is taken up more slowly.
	readyPace, followPace, applyPace pace
	// now is the clock of Event time stamps.
	now    func() time.Time
	events eventMemory
}

// New reads the kubeconfig file and prepares a client for its current context. It does not connect: an API server that
// is not there yet is no error. Client certificates given by file name are read again when they change.
func New(kubeconfigPath string, o Options) (*Client, error) {
	if kubeconfigPath == "" {
		return nil, errors.New("load kubeconfig: no path given")
	}
	load := clientcmd.LoadFromFile
	if o.AsRoot {
		load = loadAsRoot
	}
	raw, err := load(kubeconfigPath)
	if err != nil {
		return nil, fmt.Errorf("load kubeconfig %s: %w", kubeconfigPath, err)
	}
	cfg, err := clientcmd.NewDefaultClientConfig(*raw, nil).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("load kubeconfig %s: %w", kubeconfigPath, err)
	}
	return newForConfig(cfg, o)
}

func newForConfig(cfg *rest.Config, o Options) (*Client, error) {
	base, _, err := rest.DefaultServerUrlFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("parse API server address %q: %w", cfg.Host, err)
	}
	// Watches outlive any timeout of a whole request; single requests are bounded by their context.
	cfg.Timeout = 0
	// The API server is near: compressing costs both sides more than it saves.
	cfg.DisableCompression = true
	hc, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("prepare transport to %s: %w", base.Host, err)
	}
	c := &Client{
		http: hc, base: base, agent: o.UserAgent, log: o.Log, date: o.Date, maxAnswer: maxAnswer, now: time.Now,
		readyPace:  pace{first: 10 * time.Millisecond, limit: 100 * time.Millisecond},
		followPace: pace{first: 50 * time.Millisecond, limit: time.Second},
		applyPace:  pace{first: 20 * time.Millisecond, limit: 250 * time.Millisecond},
	}
	if cfg.Insecure {
		c.maxAnswer = maxPublicAnswer
	}
	if c.agent == "" {
		c.agent = DefaultUserAgent
	}
	if c.log == nil {
		silent := logrus.New()
		silent.SetOutput(io.Discard)
		c.log = silent
	}
	return c, nil
}

// Close drops idle connections. Calls under way go on.
func (c *Client) Close() { utilnet.CloseIdleConnectionsFor(c.http.Transport) }

// Server returns the API server's host and port as the kubeconfig has them.
func (c *Client) Server() string { return c.base.Host }

// request is one call of the API.
type request struct {
	method, path string
	query        url.Values
	contentType  string
	body         []byte
}

// stream sends r and returns the answer's body, which the caller closes. Every answer but 2xx is an error; those of the
// API are *apierrors.StatusError, so that apierrors.IsNotFound and its kin apply.
func (c *Client) stream(ctx context.Context, r request) (io.ReadCloser, error) {
	u := *c.base
	u.Path = strings.TrimSuffix(u.Path, "/") + r.path
	u.RawQuery = r.query.Encode()
	req, err := http.NewRequestWithContext(ctx, r.method, u.String(), bytes.NewReader(r.body))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", strings.ToLower(r.method), r.path, err)
	}
	req.Header.Set("Accept", mimeJSON)
	req.Header.Set("User-Agent", c.agent)
	if r.contentType != "" {
		req.Header.Set("Content-Type", r.contentType)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err // its text repeats method and address
		}
		return nil, fmt.Errorf("%s %s: %w", strings.ToLower(r.method), r.path, err)
	}
	if c.date != nil {
		if at, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
			c.date(at)
		}
	}
	if resp.StatusCode/100 != 2 {
		defer resp.Body.Close()
		return nil, fmt.Errorf("%s %s: %w", strings.ToLower(r.method), r.path, refusal(resp))
	}
	return resp.Body, nil
}

// do sends r and decodes the answer into out, unless that is nil.
func (c *Client) do(ctx context.Context, r request, out any) error {
	body, err := c.stream(ctx, r)
	if err != nil {
		return err
	}
	defer body.Close()
	answer := bound(body, c.maxAnswer)
	if out == nil {
		_, err = io.Copy(io.Discard, answer)
	} else {
		err = json.NewDecoder(answer).Decode(out)
	}
	if err != nil {
		return fmt.Errorf("%s %s: read answer: %w", strings.ToLower(r.method), r.path, err)
	}
	return nil
}

// refusal turns an answer other than 2xx into an error that says what the server said.
func refusal(resp *http.Response) error {
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	var st metav1.Status
	if json.Unmarshal(raw, &st) != nil || st.Kind != "Status" {
		st = metav1.Status{Message: firstWords(resp.Status, string(raw))}
	}
	st.Code = int32(resp.StatusCode)
	if s, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && s >= 0 {
		if st.Details == nil {
			st.Details = &metav1.StatusDetails{}
		}
		st.Details.RetryAfterSeconds = int32(s)
	}
	return &apierrors.StatusError{ErrStatus: st}
}

// firstWords makes one line of an answer that is not a Status object. The health endpoints answer with one line a
// check; those that fail begin with "[-]" and are all that is of interest.
func firstWords(status, body string) string {
	var failing []string
	for line := range strings.Lines(body) {
		if rest, ok := strings.CutPrefix(line, "[-]"); ok {
			name, _, _ := strings.Cut(rest, " ")
			failing = append(failing, name)
		}
	}
	if len(failing) > 0 {
		return status + ": not yet " + strings.Join(failing, ", ")
	}
	line, _, _ := strings.Cut(strings.TrimSpace(body), "\n")
	if line == "" {
		return status
	}
	return status + ": " + line
}

// code returns the HTTP status of an API refusal, 0 for any other error.
func code(err error) int {
	var se *apierrors.StatusError
	if errors.As(err, &se) {
		return int(se.ErrStatus.Code)
	}
	return 0
}

// Untrusted tells that the server's certificate is not one that the client may believe: another authority, another
// name, or not valid now. Asking again does not help. The certificate is found in err as crypto/x509 has it.
func Untrusted(err error) bool {
	var ve *tls.CertificateVerificationError
	return errors.As(err, &ve)
}

// timedOut reports a wait that ended with ctx. A deadline is classed errdefs.ErrTimeout; last may be nil.
func timedOut(ctx context.Context, what string, last error) error {
	err := context.Cause(ctx)
	if last != nil && !errors.Is(last, context.Canceled) && !errors.Is(last, context.DeadlineExceeded) {
		err = fmt.Errorf("%s: %w; last: %w", what, err, last)
	} else {
		err = fmt.Errorf("%s: %w", what, err)
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return errdefs.Class(errdefs.ErrTimeout, err)
	}
	return err
}
