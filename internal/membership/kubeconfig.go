package membership

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
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// User and group of a node in the API server: https://kubernetes.io/docs/reference/access-authn-authz/node/
const (
	nodeUserPrefix = "system:node:"
	nodeGroup      = "system:nodes"
)

// readKubeconfig reads w.file and returns an error if it cannot be used to join.
func readKubeconfig(j *joiner, w *joinMethod) error {
	var err error
	if w.creds, err = kubeapi.LoadCluster(w.file); err != nil {
		return err
	}
	if u, err := url.Parse(w.creds.Server); err == nil && u.Port() == "" {
		u.Host += ":443" // the default of a kubeconfig
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
			return fmt.Errorf("kubeconfig %s: the user has neither a token nor a client certificate", w.file)
		}
		return nil
	}
	if len(w.creds.CertPEM) == 0 {
		return errdefs.Errorf("kubeconfig %s: the user has no client certificate, which is required for a node", w.file).
			Hint("join.bootstrapKubeconfig: " + w.file + "    # if the user may request one")
	}
	leaf, err := w.leaf()
	if err != nil {
		return err
	}
	want := nodeUserPrefix + j.Config.NodeName
	if leaf.Subject.CommonName != want || !slices.Contains(leaf.Subject.Organization, nodeGroup) {
		err := fmt.Errorf("kubeconfig %s: the certificate is for user %q in groups %q: it must be for user %q in group %q", w.file, leaf.Subject.CommonName,
			leaf.Subject.Organization, want, nodeGroup)
		if name, ok := nodeNameOf(leaf); ok {
			return errdefs.WithHint(err, "nodeName: "+name)
		}
		return errdefs.WithHint(err, "join.bootstrapKubeconfig: "+w.file+"    # if the user may request a certificate for a node")
	}
	return nil
}

func nodeNameOf(leaf *x509.Certificate) (string, bool) {
	cn := leaf.Subject.CommonName
	return cn[min(len(cn), len(nodeUserPrefix)):], len(cn) > len(nodeUserPrefix) && cn[:len(nodeUserPrefix)] == nodeUserPrefix
}

func (w *joinMethod) leaf() (*x509.Certificate, error) {
	certs, err := certificates(w.creds.CertPEM)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: client certificate: %w", w.file, err)
	}
	return certs[0], nil
}

// newer reports whether the kubeconfig has a later certificate than the data dir.
func (w *joinMethod) newer(data layout.Data) bool {
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

func (j *joiner) byKubeconfig(ctx context.Context, rec *Record, w joinMethod) (*Record, error) {
	if _, err := Hashes(w.creds.CA); err != nil {
		return nil, errdefs.Config("kubeconfig %s: certificate-authority: %w", w.file, err)
	}
	if err := j.checkAuthority(rec, w.creds.CA, w.server); err != nil {
		return nil, err
	}
	if len(w.creds.CertPEM) > 0 {
		leaf, err := w.leaf()
		if err != nil {
			return nil, errdefs.Class(errdefs.ErrConfig, err)
		}
		if what := invalid(j, leaf); what != "" {
			return nil, j.hintClock(ctx, w.server, errdefs.Preflight("kubeconfig %s: the certificate %s", w.file, what), errdefs.Text("Request a new certificate from the cluster's administrator."))
		}
	}
	cluster, err := j.examine(ctx, w.creds, "user of "+w.file)
	if err != nil {
		return nil, err
	}
	return j.save(cluster, w)
}

// Names of the kubelet's client certificate in layout.Data.KubeletPKI, as the kubelet creates them.
const (
	clientPrefix  = "kubelet-client-"
	clientCurrent = clientPrefix + "current.pem"
	clientDate    = "2006-01-02-15-04-05"
)

// clientCertificate returns the node's certificate, as PEM with its key and parsed. The link contains a path inside.
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

// CertificateEnd returns the time when the node's certificate expires.
func CertificateEnd(data layout.Data) (time.Time, error) {
	_, leaf, err := clientCertificate(data)
	if err != nil {
		return time.Time{}, err
	}
	return leaf.NotAfter, nil
}

// invalid returns the reason why a certificate is not valid now, or an empty string.
func invalid(j *joiner, c *x509.Certificate) string {
	const form = "2006-01-02 15:04:05 MST"
	switch now := j.Now(); {
	case now.After(c.NotAfter):
		return fmt.Sprintf("expired at %s, and the time of this host is %s", c.NotAfter.UTC().Format(form), now.UTC().Format(form))
	case now.Before(c.NotBefore):
		return fmt.Sprintf("is not valid before %s, and the time of this host is %s", c.NotBefore.UTC().Format(form), now.UTC().Format(form))
	}
	return ""
}
