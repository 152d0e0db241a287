package clusterjoin

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

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/kubeapi"
)

// fault is what keeps the node from joining.
func fault(format string, args ...any) error {
	return errdefs.Class(errdefs.ErrPreflight, fmt.Errorf(format, args...))
}

// staleError: what the node has is good for nothing any more, and joining again would mend it.
type staleError struct{ err error }

func (e *staleError) Error() string { return e.err.Error() }
func (e *staleError) Unwrap() error { return e.err }

func stale(format string, args ...any) error {
	return errdefs.Class(errdefs.ErrPreflight, &staleError{fmt.Errorf(format, args...)})
}

// unreachableError: nobody answered, or not as an API server does that is up.
type unreachableError struct{ err error }

func (e *unreachableError) Error() string { return e.err.Error() }
func (e *unreachableError) Unwrap() error { return e.err }

func joinHint(server string) string {
	return "rootlessnode token create    # on the cluster's first node: prints the command that joins\n" +
		"rootlessnode up --join " + server + " --token-file FILE --ca-cert-hash sha256:...    # here"
}

// hintToken says how to get a token for the cluster at server.
func (j *joiner) hintToken(err error, server string) error {
	return errdefs.WithHint(err, joinHint(server))
}

// otherDataHint says how to be a node with other data.
func (j *joiner) otherDataHint() string {
	name := ""
	if j.Config.Name != "" && j.Config.Name != config.DefaultName {
		name = " --name " + j.Config.Name
	}
	return "rootlessnode" + name + " down --delete-data    # removes " + j.Data.Dir + "\n" +
		"rootlessnode --name OTHER up ...    # or a second node beside it"
}

// ask calls f with a client until it answers, for about j.total, or once if once. Only what may be gone a moment later is
// asked again. What f returns comes back as a fault with a hint.
func (j *joiner) ask(ctx context.Context, cl kubeapi.Cluster, once bool, f func(context.Context, *kubeapi.Client) error) error {
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
			return fmt.Errorf("ask the API server at %s: %w", cl.Server, context.Cause(ctx))
		case late:
			err = fmt.Errorf("no answer within %s", j.try)
		case !passing(err):
			return j.explain(ctx, cl, err)
		}
		if tries == 1 && !once {
			j.Log.WithField("server", cl.Server).Infof("the API server does not answer yet: %v", err)
		}
		if wait := time.NewTimer(j.pause); !once {
			select {
			case <-ctx.Done():
				return fmt.Errorf("ask the API server at %s: %w", cl.Server, context.Cause(ctx))
			case <-wait.C:
				continue
			case <-until.C:
			}
		}
		return j.unreachable(cl.Server, tries, err)
	}
}

func (j *joiner) unreachable(server string, tries int, err error) error {
	times := "once"
	if tries > 1 {
		times = fmt.Sprintf("%d times in %s", tries, j.total)
	}
	host := strings.TrimPrefix(server, "https://")
	return errdefs.WithHintf(errdefs.Class(errdefs.ErrPreflight,
		&unreachableError{fmt.Errorf("the API server at %s cannot be reached: asked %s, last: %w", server, times, err)}),
		"curl -k %s/version    # what does this host reach there?\n"+
			"Is %s right, does the control plane run, is its api.bindAddress (or firewall) open for this host?", server, host)
}

// passing tells whether err may be gone when asked again.
func passing(err error) bool {
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

// httpAnswer is how net/http tells that the other side does not speak TLS; it has no type of its own for that.
const httpAnswer = "server gave HTTP response to HTTPS client"

// explain turns an error that asking again does not mend into a fault.
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
		return errdefs.WithHint(fault("what answers at %s is no API server: %w", server, err), "join.server: https://HOST:6443    # is the port right?")
	case errors.As(err, &names):
		return errdefs.WithHintf(fault("the API server at %s has a certificate for other names: %w", server, err),
			"Name it as its certificate does, or add this name there: api.extraSANs in the first node's config.")
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return j.hintClock(ctx, server, fault("the certificate of the API server at %s is not valid at this host's time, %s: %w",
			server, j.Now().UTC().Format(time.RFC3339), err), "On the control plane: is its certificate renewed?")
	case errors.As(err, &authority), kubeapi.Untrusted(err):
		return errdefs.WithHintf(fault("the certificate of the API server at %s is not from the cluster's authority: somebody is in between: %w",
			server, err), "Does a proxy or a load balancer at %s end TLS? It must hand it through, as nodes show certificates.", server)
	}
	return fault("ask the API server at %s: %w", server, err)
}

// clock learns how far the server's clock is from ours.
func (j *joiner) clock(at time.Time) { j.ahead, j.timed = at.Sub(j.Now()), true }

// clockFault is empty if this host's clock is right, as far as is known.
func (j *joiner) clockFault(server string) string {
	if !j.timed || j.ahead.Abs() <= clockLimit {
		return ""
	}
	way := "behind"
	if j.ahead < 0 {
		way = "ahead of"
	}
	return fmt.Sprintf("this host's clock is %s %s that of %s", j.ahead.Abs().Round(time.Second), way, server)
}

const setClock = "timedatectl    # set the clock right, or switch NTP on: timedatectl set-ntp true"

// hintClock adds to a fault of a certificate's time that the clock is wrong, if it is, or else the hint.
func (j *joiner) hintClock(ctx context.Context, server string, err error, hint string) error {
	if !j.timed {
		// Only for a hint: nobody vouches for this answer. Nothing secret is sent.
		_ = j.ask(ctx, kubeapi.Cluster{Server: server, Insecure: true}, true, func(ctx context.Context, c *kubeapi.Client) error {
			_, err := c.Version(ctx)
			return err
		})
	}
	if what := j.clockFault(server); what != "" {
		return errdefs.WithHint(err, what+"\n"+setClock)
	}
	if !j.timed {
		hint += "\nOr is this host's clock wrong? date"
	}
	return errdefs.WithHint(err, hint)
}
