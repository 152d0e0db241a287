package clusterjoin

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/kubeapi"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

// Who a node is to the API server: https://kubernetes.io/docs/reference/access-authn-authz/node/
const (
	nodeUserPrefix = "system:node:"
	nodeGroup      = "system:nodes"
)

// readKubeconfig reads w.file and refuses what cannot become a node by it.
func (j *joiner) readKubeconfig(w *way) error {
	var err error
	if w.creds, err = kubeapi.LoadCluster(w.file); err != nil {
		return err
	}
	if u, err := url.Parse(w.creds.Server); err == nil && u.Port() == "" {
		u.Host += ":443" // what a kubeconfig means by none
		w.creds.Server = u.String()
	}
	if w.server, err = config.ParseServer(w.creds.Server); err != nil {
		return fmt.Errorf("kubeconfig %s: server: %w", w.file, err)
	}
	w.creds.Server = w.server
	if len(w.creds.CertPEM) > 0 {
		if _, err := tls.X509KeyPair(w.creds.CertPEM, w.creds.KeyPEM); err != nil {
			return fmt.Errorf("kubeconfig %s: client certificate: %w", w.file, err)
		}
	}
	if !w.own {
		if len(w.creds.CertPEM) == 0 && w.creds.BearerToken == "" {
			return fmt.Errorf("kubeconfig %s: its user has neither a token nor a client certificate", w.file)
		}
		return nil
	}
	if len(w.creds.CertPEM) == 0 {
		return errdefs.WithHint(fmt.Errorf("kubeconfig %s: its user has no client certificate, which a node needs", w.file),
			"join.bootstrapKubeconfig: "+w.file+"    # if its user may ask for one")
	}
	leaf, err := w.leaf()
	if err != nil {
		return err
	}
	want := nodeUserPrefix + j.Config.NodeName
	if leaf.Subject.CommonName != want || !slices.Contains(leaf.Subject.Organization, nodeGroup) {
		err := fmt.Errorf("kubeconfig %s: its certificate is that of %q in %q: want that of %q in %q", w.file, leaf.Subject.CommonName,
			leaf.Subject.Organization, want, nodeGroup)
		if name, ok := nodeNameOf(leaf); ok {
			return errdefs.WithHintf(err, "nodeName: %s", name)
		}
		return errdefs.WithHint(err, "join.bootstrapKubeconfig: "+w.file+"    # if its user may ask for a node's certificate")
	}
	return nil
}

func nodeNameOf(leaf *x509.Certificate) (string, bool) {
	cn := leaf.Subject.CommonName
	return cn[min(len(cn), len(nodeUserPrefix)):], len(cn) > len(nodeUserPrefix) && cn[:len(nodeUserPrefix)] == nodeUserPrefix
}

func (w *way) leaf() (*x509.Certificate, error) {
	certs, err := certificates(w.creds.CertPEM)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: client certificate: %w", w.file, err)
	}
	return certs[0], nil
}

// newer tells whether the kubeconfig was given a later certificate than the data dir has.
func (w *way) newer(data layout.Data) bool {
	if !w.own {
		return false
	}
	given, err := w.leaf()
	if err != nil {
		return false
	}
	_, kept, err := clientCertificate(data)
	return err == nil && given.NotBefore.After(kept.NotBefore)
}

func (j *joiner) byKubeconfig(ctx context.Context, rec *Record, w way) (*Record, error) {
	if _, err := Hashes(w.creds.CA); err != nil {
		return nil, errdefs.Class(errdefs.ErrConfig, fmt.Errorf("kubeconfig %s: certificate-authority: %w", w.file, err))
	}
	if err := j.knownAuthority(rec, w.creds.CA, w.server); err != nil {
		return nil, err
	}
	if len(w.creds.CertPEM) > 0 {
		leaf, err := w.leaf()
		if err != nil {
			return nil, errdefs.Class(errdefs.ErrConfig, err)
		}
		if what := j.invalid(leaf); what != "" {
			return nil, j.hintClock(ctx, w.server, fault("kubeconfig %s: its certificate %s", w.file, what), "Get a new one from the cluster's administrator.")
		}
	}
	cluster, err := j.examine(ctx, w.creds, "user of "+w.file)
	if err != nil {
		return nil, err
	}
	return j.keep(cluster, w)
}

// Names of the kubelet's client certificate in layout.Data.KubeletPKI, as the kubelet itself makes them.
const (
	clientPrefix  = "kubelet-client-"
	clientCurrent = clientPrefix + "current.pem"
	clientDate    = "2006-01-02-15-04-05"
)

// clientCertificate is the node's, with its key in the same text. The link holds a path inside.
func clientCertificate(data layout.Data) ([]byte, *x509.Certificate, error) {
	target, err := os.Readlink(filepath.Join(data.KubeletPKI(), clientCurrent))
	if err != nil {
		return nil, nil, err
	}
	path := filepath.Join(data.KubeletPKI(), filepath.Base(target))
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	if _, err := tls.X509KeyPair(text, text); err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", path, err)
	}
	certs, err := certificates(text)
	if err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", path, err)
	}
	return text, certs[0], nil
}

// CertificateEnd returns when the node's certificate expires.
func CertificateEnd(data layout.Data) (time.Time, error) {
	_, leaf, err := clientCertificate(data)
	if err != nil {
		return time.Time{}, err
	}
	return leaf.NotAfter, nil
}

// invalid says why a certificate is not valid now; empty if it is.
func (j *joiner) invalid(c *x509.Certificate) string {
	const form = "2006-01-02 15:04:05 MST"
	switch now := j.Now(); {
	case now.After(c.NotAfter):
		return fmt.Sprintf("expired at %s, and this host's clock says %s", c.NotAfter.UTC().Format(form), now.UTC().Format(form))
	case now.Before(c.NotBefore):
		return fmt.Sprintf("is not valid before %s, and this host's clock says %s", c.NotBefore.UTC().Format(form), now.UTC().Format(form))
	}
	return ""
}
