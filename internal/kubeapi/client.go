package kubeapi

import (
	"bytes"
	"cmp"
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
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/transport"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

const (
	// DefaultUserAgent is sent when Options.UserAgent is empty.
	DefaultUserAgent = "rootlessnode"

	mimeJSON = "application/json"
	// mimeMetadata and mimeMetadataList request only the metadata of objects.
	mimeMetadata     = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
	mimeMetadataList = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
	mimeMergePatch   = "application/merge-patch+json"
	// mimeStrategicPatch changes one condition of a list, selected by its type.
	mimeStrategicPatch = "application/strategic-merge-patch+json"
	mimeApplyPatch     = "application/apply-patch+yaml"

	// maxErrorBody limits how much of an error response's body is read, in bytes.
	maxErrorBody = 64 << 10
)

// init shortens the interval in which client-go looks for a new client certificate. A node whose certificates expired while
// the machine was suspended renews them; its client must not use the connections of the former one for five more minutes.
func init() { transport.CertCallbackRefreshDuration = 30 * time.Second }

// Options are the arguments of New. The zero value is useful.
type Options struct {
	// UserAgent is the name in the API server's audit log; DefaultUserAgent if empty.
	UserAgent string
	// Log receives retried errors at debug level. A new list after the API server dropped older changes (410 Gone) is logged
	// at info level. Nothing is logged if Log is nil.
	Log logrus.FieldLogger
	// Date receives the server's clock, in seconds, with each response that contains it. It is called by the goroutine of
	// the request. The time of a server that is not verified must not be trusted. May be nil.
	Date func(time.Time)
	// AsRoot is for a process that runs as root with a kubeconfig that another account may have written. The current context
	// must then contain only data: no file reference and no proxy-url, unless only root can change the kubeconfig and the
	// referenced files (hostinfo.RootOnly), and never a plugin. Files are read once.
	AsRoot bool
}

// Client talks to one API server with one identity. It is safe for concurrent use and has no goroutine. Its methods are grouped
// by the objects that they read and write.
type Client struct {
	*conn
	objects
	sets
	nodes
	workloads
	certificates
	tokens
	events
}

type (
	objects      struct{ *conn }
	sets         struct{ *conn }
	nodes        struct{ *conn }
	workloads    struct{ *conn }
	certificates struct{ *conn }
	tokens       struct{ *conn }
	events       struct{ *conn }
)

// conn sends the requests of a Client.
type conn struct {
	http  *http.Client
	base  *url.URL
	agent string
	log   logrus.FieldLogger
	date  func(time.Time)
	// maxAnswer is the size limit of one response, in bytes.
	maxAnswer int64

	// Back-off between attempts. Readiness is polled quickly, because a starting API server responds within one or two
	// seconds; a refused watch is restarted more slowly.
	readyBackoff, followBackoff, applyBackoff wait.Backoff
	// now is the clock for the time stamps of Events.
	now   func() time.Time
	cache eventCache
}

// New reads the kubeconfig file and prepares a client for its current context. It does not connect, so the API server need
// not be running yet. Client certificates in files are read again when they change.
func New(kubeconfigPath string, o Options) (*Client, error) {
	if kubeconfigPath == "" {
		return nil, errors.New("load kubeconfig: the path is empty")
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
	if cfg.Proxy == nil { // proxy-url is not set: proxies of the environment are for connections that leave the cluster
		cfg.Proxy = func(*http.Request) (*url.URL, error) { return nil, nil }
	}
	// A watch lasts longer than any timeout of a request; other requests are bounded by their context.
	cfg.Timeout = 0
	// The API server is near: compression would cost both sides more than it saves.
	cfg.DisableCompression = true
	hc, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("prepare transport to %s: %w", base.Host, err)
	}
	c := &conn{
		http: hc, base: base, agent: o.UserAgent, log: o.Log, date: o.Date, maxAnswer: maxAnswer, now: time.Now,
		readyBackoff:  doubling(10*time.Millisecond, 100*time.Millisecond),
		followBackoff: doubling(50*time.Millisecond, time.Second),
		applyBackoff:  doubling(20*time.Millisecond, 250*time.Millisecond),
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
	return &Client{c, objects{c}, sets{c}, nodes{c}, workloads{c}, certificates{c}, tokens{c}, events{c}}, nil
}

// Close closes idle connections. Active calls continue.
func (c *conn) Close() { utilnet.CloseIdleConnectionsFor(c.http.Transport) }

// Server returns the API server's host and port from the kubeconfig.
func (c *conn) Server() string { return c.base.Host }

// request is one API call.
type request struct {
	method, path string
	query        url.Values
	contentType  string
	body         []byte
	accept       string // empty for mimeJSON
}

// stream sends r and returns the body of the response, which the caller must close. Every status except 2xx is an error;
// errors of the API are *apierrors.StatusError, so that apierrors.IsNotFound and similar functions work.
func (c *conn) stream(ctx context.Context, r request) (io.ReadCloser, error) {
	u := *c.base
	u.Path = strings.TrimSuffix(u.Path, "/") + r.path
	u.RawQuery = r.query.Encode()
	req, err := http.NewRequestWithContext(ctx, r.method, u.String(), bytes.NewReader(r.body))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", strings.ToLower(r.method), r.path, err)
	}
	req.Header.Set("Accept", cmp.Or(r.accept, mimeJSON))
	req.Header.Set("User-Agent", c.agent)
	if r.contentType != "" {
		req.Header.Set("Content-Type", r.contentType)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err // without the method and address of url.Error
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

// do sends r and decodes the response into out unless out is nil.
func (c *conn) do(ctx context.Context, r request, out any) error {
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

// refusal converts a response other than 2xx into an error with the server's message.
func refusal(resp *http.Response) error {
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	var st metav1.Status
	if json.Unmarshal(raw, &st) != nil || st.Kind != "Status" {
		st = metav1.Status{Message: summarize(resp.Status, string(raw))}
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

// summarize converts a response that is not a Status object into one line. The health endpoints return one line for each
// check; failing checks begin with "[-]", and only those are included.
func summarize(status, body string) string {
	var failing []string
	for line := range strings.Lines(body) {
		if rest, ok := strings.CutPrefix(line, "[-]"); ok {
			name, _, _ := strings.Cut(rest, " ")
			failing = append(failing, name)
		}
	}
	if len(failing) > 0 {
		return status + ": failing checks: " + strings.Join(failing, ", ")
	}
	line, _, _ := strings.Cut(strings.TrimSpace(body), "\n")
	if line == "" {
		return status
	}
	return status + ": " + line
}

// code returns the HTTP status of an API error, or 0 for any other error.
func code(err error) int {
	var se *apierrors.StatusError
	if errors.As(err, &se) {
		return int(se.ErrStatus.Code)
	}
	return 0
}

// Untrusted reports whether err means that the server's certificate is not trusted: wrong authority, wrong name, or not
// valid at this time. A retry does not help. The certificate is in err, as an error type of crypto/x509.
func Untrusted(err error) bool {
	var ve *tls.CertificateVerificationError
	return errors.As(err, &ve)
}

// timedOut returns an error for a wait that ended with ctx. A deadline has the class errdefs.ErrTimeout; last may be nil.
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
