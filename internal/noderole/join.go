package noderole

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/rootlessnode/rootlessnode/internal/atomicfile"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/apiserver"
	"github.com/rootlessnode/rootlessnode/internal/component/catalogue"
	"github.com/rootlessnode/rootlessnode/internal/component/kubelet"
	"github.com/rootlessnode/rootlessnode/internal/component/pki"
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// joiner gets a worker's credentials.
type joiner struct {
	env        component.Env
	kubeconfig string // the worker's kubeconfig for the host
	log        *logrus.Logger
	client     clientFunc
}

// Run gets a worker's credentials: it requests the node's certificate with the bootstrap kubeconfig, if there is one.
// Then it waits until the cluster lets nodes read what kube-proxy, flannel and kube-network-policies need. It retries
// while the cluster does not respond. A denied certificate request is an error.
func (j *joiner) Run(ctx context.Context) error {
	if err := j.certificate(ctx); err != nil {
		return errdefs.Class(errdefs.ErrPreflight, err)
	}
	own, err := kubelet.Kubeconfig(j.env)
	if err != nil {
		return err
	}
	if err := errors.Join(component.Write([]component.File{{Path: insideAdmin, Mode: 0o600, Data: own}}), j.hostKubeconfig()); err != nil {
		return err
	}
	c, err := j.client()
	if err != nil {
		return err
	}
	return supervisor.Poll(joinPoll, "permission to read the resources that the pod network needs", func(ctx context.Context) error {
		return j.checkReadAccess(ctx, c)
	})(ctx)
}

// checkReadAccess returns an error that names the resource that nodes are not allowed to list.
func (j *joiner) checkReadAccess(ctx context.Context, c *kubeapi.Client) error {
	wanted := []kubeapi.Resource{{Name: "nodes"}, {Name: "services"}, {Group: "discovery.k8s.io", Name: "endpointslices"}}
	manifests := "apply the rules of `manifests join-rbac`"
	for _, c := range catalogue.Enabled(j.env.Config) {
		if len(c.Worker.Reads) == 0 {
			continue
		}
		wanted = append(wanted, c.Worker.Reads...)
		manifests = "set `networkPolicy` on the cluster's first node, or apply the rules of `manifests join-rbac --network-policy`,"
	}
	for _, r := range wanted {
		allowed, err := c.MayList(ctx, r)
		if err != nil {
			return err
		}
		if !allowed {
			return fmt.Errorf("list %s: nodes of the cluster are not allowed to list this resource: %s or upgrade the first node to this version", r, manifests)
		}
	}
	return nil
}

// joinPoll is the interval between two requests to the cluster, which may be busy or unavailable.
const joinPoll = 500 * time.Millisecond

// certificate creates a key and requests its certificate, if there is a bootstrap kubeconfig, which it removes
// afterwards.
func (j *joiner) certificate(ctx context.Context) error {
	if _, err := os.Stat(layout.InsideBootstrap); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	c, err := kubeapi.New(layout.InsideBootstrap, kubeapi.Options{UserAgent: "rootlessnode", Log: j.log})
	if err != nil {
		return err
	}
	defer c.Close()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("create the node's key: %w", err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{
		CommonName: pki.NodeUser(j.env.Config.NodeName), Organization: []string{pki.GroupNodes},
	}}, key)
	if err != nil {
		return fmt.Errorf("create the node's certificate request: %w", err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return fmt.Errorf("encode the node's key: %w", err)
	}
	cert, err := c.RequestCertificate(ctx, kubeapi.CertificateRequest{
		NamePrefix: "node-csr-", Signer: kubeapi.SignerKubeletClient,
		PEM:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
		Usages: []string{"digital signature", "client auth"},
	}, func(text string) { supervisor.Progress(ctx, "%s", text) })
	if err != nil {
		return errdefs.Errorf("join the cluster as node %s: %w", j.env.Config.NodeName, err).
			With(errdefs.Do(errdefs.CreateToken).Note("on the cluster's first node, then retry"))
	}
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
	if err := storeCertificate(layout.InsideKubeletPKI, append(cert, keyPEM...), time.Now()); err != nil {
		return err
	}
	j.log.WithField("node", j.env.Config.NodeName).Info("the cluster issued this node's certificate")
	return os.Remove(layout.InsideBootstrap)
}

// storeCertificate writes the certificate and key where the kubelet reads and renews them: in a file with a timestamp
// and a link to it (client-go, util/certificate, certificate_store.go).
func storeCertificate(dir string, both []byte, now time.Time) error {
	if _, err := tls.X509KeyPair(both, both); err != nil {
		return fmt.Errorf("check the issued certificate: %w", err)
	}
	path := filepath.Join(dir, "kubelet-client-"+now.Format("2006-01-02-15-04-05")+".pem")
	link := filepath.Join(dir, filepath.Base(pki.NodeCert))
	err := errors.Join(
		component.MakeDirs([]component.Dir{{Path: dir, Mode: 0o700}}),
		component.Write([]component.File{{Path: path, Mode: 0o600, Data: both, Durable: true}}),
	)
	if err != nil {
		return err
	}
	return atomicfile.Symlink(path, link)
}

// hostKubeconfig writes the worker's kubeconfig for the host, which is valid until the kubelet renews the certificate.
func (j *joiner) hostKubeconfig() error {
	both, err := os.ReadFile(pki.NodeCert)
	if err != nil {
		return fmt.Errorf("read the node's certificate: %w", err)
	}
	ca, err := os.ReadFile(pki.CertFile(pki.ClusterCA))
	if err != nil {
		return fmt.Errorf("read the cluster's CA certificate: %w", err)
	}
	data, err := component.RenderKubeconfig(component.Kubeconfig{
		Server: j.env.APIServerURL, Cluster: apiserver.ClusterName(j.env), User: apiserver.ClusterName(j.env),
		CAData: ca, CertData: both, KeyData: both,
	})
	if err != nil {
		return err
	}
	return component.Write([]component.File{{Path: j.kubeconfig, Mode: 0o600, Data: data}})
}
