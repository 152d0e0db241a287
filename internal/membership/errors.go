package membership

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// staleError means that the stored data of the join is no longer usable and that joining again would fix it.
type staleError struct{ err error }

func (e *staleError) Error() string { return e.err.Error() }
func (e *staleError) Unwrap() error { return e.err }

func stale(format string, args ...any) *errdefs.Error {
	return errdefs.Preflight("%w", &staleError{fmt.Errorf(format, args...)})
}

// unreachableError means that there was no response, or not that of an API server that is up.
type unreachableError struct{ err error }

func (e *unreachableError) Error() string { return e.err.Error() }
func (e *unreachableError) Unwrap() error { return e.err }

// joinHint returns how to get and use a token for the cluster at server.
func joinHint(server string) errdefs.Hint {
	return errdefs.Do(errdefs.CreateToken).Note("on the cluster's first node: prints the join command").
		Do(errdefs.Start, "join.server="+server, errdefs.TokenFile+"=FILE", "join.caCertHashes=sha256:...").Note("on this host")
}

// otherDataHint returns the commands to use another data dir.
func otherDataHint(j *joiner) errdefs.Hint {
	return append(errdefs.Do(errdefs.DeleteData).Note("removes "+j.Data.Dir),
		errdefs.Step{Action: errdefs.Start, Node: "OTHER", Text: "or start a second node in addition to it"})
}

// query calls f with a client until it succeeds, for about j.total, or only once if once is set. Only temporary failures are
// retried. An error of f is returned as a fault with a hint.
func (j *joiner) query(ctx context.Context, cl kubeapi.Cluster, once bool, f func(context.Context, *kubeapi.Client) error) error {
	c, err := kubeapi.NewForCluster(cl, kubeapi.Options{Log: j.Log, Date: j.clock})
	if err != nil {
		return errdefs.Class(errdefs.ErrPreflight, err)
	}
	defer c.Close()
	tries, until := 0, time.NewTimer(j.total)
	defer until.Stop()
	for {
		tries++
		one, cancel := context.WithTimeout(ctx, j.try)
		err := f(one, c)
		late := one.Err() != nil
		cancel()
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("query the API server at %s: %w", cl.Server, context.Cause(ctx))
		case late:
			err = fmt.Errorf("no response within %s", j.try)
		case !isRetryable(err):
			return j.explain(ctx, cl, err)
		}
		if tries == 1 && !once {
			j.Log.WithField("server", cl.Server).Infof("the API server is not responding yet: %v", err)
		}
		if wait := time.NewTimer(j.pause); !once {
			select {
			case <-ctx.Done():
				return fmt.Errorf("query the API server at %s: %w", cl.Server, context.Cause(ctx))
			case <-wait.C:
				continue
			case <-until.C:
			}
		}
		return j.unreachable(cl.Server, tries, err)
	}
}

func (j *joiner) unreachable(server string, tries int, err error) error {
	times := "1 attempt"
	if tries > 1 {
		times = fmt.Sprintf("%d attempts in %s", tries, j.total)
	}
	host := strings.TrimPrefix(server, "https://")
	return errdefs.Preflight("%w", &unreachableError{fmt.Errorf("the API server at %s is unreachable after %s: %w", server, times, err)}).
		Hint(fmt.Sprintf("curl -k %s/version    # test the connection from this host", server),
			fmt.Sprintf("Check that %s is correct, that the control plane is running, and that its api.bindAddress and firewall allow this host.", host))
}

// isRetryable reports whether a retry after err may succeed.
func isRetryable(err error) bool {
	var dns *net.DNSError
	switch {
	case kubeapi.Untrusted(err), errors.As(err, &dns) && dns.IsNotFound, strings.Contains(err.Error(), httpAnswer):
		return false
	}
	var st apierrors.APIStatus
	if !errors.As(err, &st) {
		return true
	}
	code := st.Status().Code
	return code >= http.StatusInternalServerError || code == http.StatusTooManyRequests
}

// httpAnswer is the text of net/http's error for a server that does not speak TLS; there is no error type for it.
const httpAnswer = "server gave HTTP response to HTTPS client"

// explain returns the fault for an error that is not retryable.
func (j *joiner) explain(ctx context.Context, cl kubeapi.Cluster, err error) error {
	var (
		dns       *net.DNSError
		authority x509.UnknownAuthorityError
		names     x509.HostnameError
		invalid   x509.CertificateInvalidError
	)
	server := cl.Server
	switch {
	case errors.As(err, &dns):
		return j.unreachable(server, 1, err)
	case strings.Contains(err.Error(), httpAnswer):
		return errdefs.Preflight("the server at %s is not an API server: %w", server, err).
			Hint("join.server: https://HOST:6443    # check the port")
	case errors.As(err, &names):
		return errdefs.Preflight("the API server at %s has a certificate that does not contain this name: %w", server, err).
			Hint("Use a name from the certificate, or add this name to api.extraSANs in the config of the first node.")
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return j.hintClock(ctx, server, errdefs.Preflight("the certificate of the API server at %s is not valid at the time of this host, %s: %w",
			server, j.Now().UTC().Format(time.RFC3339), err), errdefs.Text("Check that the control plane has renewed its certificate."))
	case errors.As(err, &authority), kubeapi.Untrusted(err):
		return errdefs.Preflight("the certificate of the API server at %s is not signed by the cluster's CA: possible man in the middle: %w",
			server, err).
			Hintf("If a proxy or a load balancer at %s terminates TLS, configure it to pass TLS through, because nodes use client certificates.", server)
	}
	return errdefs.Preflight("query the API server at %s: %w", server, err)
}

// clock records the difference between the server's clock and this host's.
func (j *joiner) clock(at time.Time) { j.ahead, j.timed = at.Sub(j.Now()), true }

// clockFault describes a wrong clock. It returns an empty string if the clocks agree or the server's is unknown.
func (j *joiner) clockFault(server string) string {
	if !j.timed || j.ahead.Abs() <= clockLimit {
		return ""
	}
	way := "behind"
	if j.ahead < 0 {
		way = "ahead of"
	}
	return fmt.Sprintf("the clock of this host is %s %s that of %s", j.ahead.Abs().Round(time.Second), way, server)
}

const setClock = "timedatectl    # set the clock, or enable NTP: timedatectl set-ntp true"

// hintClock adds a hint to an error about the validity of a certificate: that the clock is wrong if it is, otherwise hint.
func (j *joiner) hintClock(ctx context.Context, server string, err *errdefs.Error, hint errdefs.Hint) error {
	if !j.timed {
		// Only for a hint: this server is not verified, and no secret is sent.
		_ = j.query(ctx, kubeapi.Cluster{Server: server, Insecure: true}, true, func(ctx context.Context, c *kubeapi.Client) error {
			_, err := c.Version(ctx)
			return err
		})
	}
	if what := j.clockFault(server); what != "" {
		return err.Hint(what, setClock)
	}
	if !j.timed {
		hint = hint.Text("Check also the clock of this host: date")
	}
	return err.With(hint)
}
