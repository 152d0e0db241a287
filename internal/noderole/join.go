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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/rootlessnode/rootlessnode/internal/atomicfile"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/apiserver"
	"github.com/rootlessnode/rootlessnode/internal/component/kubelet"
	"github.com/rootlessnode/rootlessnode/internal/component/pki"
	"github.com/rootlessnode/rootlessnode/internal/component/resources"
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/membership"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// join gets a worker's credentials: it requests the node's certificate with the bootstrap kubeconfig, if there is one.
// Then it waits until the cluster lets nodes read what kube-proxy, flannel and kube-network-policies need. It retries
// while the cluster does not respond. A denied certificate request is an error.
func (n *nodeRole) join(ctx context.Context) error {
	if err := n.nodeCertificate(ctx); err != nil {
		return errdefs.Class(errdefs.ErrPreflight, err)
	}
	own, err := kubelet.Kubeconfig(n.env)
	if err != nil {
		return err
	}
	if err := errors.Join(component.Write([]component.File{{Path: insideAdmin, Mode: 0o600, Data: own}}), n.hostKubeconfig()); err != nil {
		return err
	}
	c, err := n.client()
	if err != nil {
		return err
	}
	return supervisor.Poll(joinPoll, "permission to read the resources that the pod network needs", func(ctx context.Context) error {
		return n.checkReadAccess(ctx, c)
	})(ctx)
}

// checkReadAccess returns an error that names the resource that nodes are not allowed to list.
func (n *nodeRole) checkReadAccess(ctx context.Context, c *kubeapi.Client) error {
	wanted := []kubeapi.Resource{{Name: "nodes"}, {Name: "services"}, {Group: "discovery.k8s.io", Name: "endpointslices"}}
	manifests := "apply the output of `rootlessnode manifests join-rbac`"
	if n.cfg.EnforcesPolicies() {
		wanted = append(wanted, kubeapi.Resource{Name: "pods"}, kubeapi.Resource{Name: "namespaces"},
			kubeapi.Resource{Group: "networking.k8s.io", Name: "networkpolicies"})
		manifests = "set `networkPolicy` on the cluster's first node, or apply the output of `rootlessnode manifests join-rbac --network-policy`,"
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

// nodeCertificate creates a key and requests its certificate, if there is a bootstrap kubeconfig, which it removes
// afterwards.
func (n *nodeRole) nodeCertificate(ctx context.Context) error {
	if _, err := os.Stat(layout.InsideBootstrap); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	c, err := kubeapi.New(layout.InsideBootstrap, kubeapi.Options{UserAgent: "rootlessnode", Log: n.log})
	if err != nil {
		return err
	}
	defer c.Close()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("create the node's key: %w", err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{
		CommonName: pki.NodeUser(n.cfg.NodeName), Organization: []string{pki.GroupNodes},
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
		return errdefs.WithHint(fmt.Errorf("join the cluster as node %s: %w", n.cfg.NodeName, err),
			"rootlessnode token create    # on the cluster's first node, then retry")
	}
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
	if err := storeCertificate(layout.InsideKubeletPKI, append(cert, keyPEM...), time.Now()); err != nil {
		return err
	}
	n.log.WithField("node", n.cfg.NodeName).Info("the cluster issued this node's certificate")
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
func (n *nodeRole) hostKubeconfig() error {
	both, err := os.ReadFile(pki.NodeCert)
	if err != nil {
		return fmt.Errorf("read the node's certificate: %w", err)
	}
	ca, err := os.ReadFile(pki.CertFile(pki.ClusterCA))
	if err != nil {
		return fmt.Errorf("read the cluster's CA certificate: %w", err)
	}
	data, err := component.RenderKubeconfig(component.Kubeconfig{
		Server: n.env.APIServerURL, Cluster: apiserver.ClusterName(n.env), User: pki.NodeUser(n.cfg.NodeName),
		CAData: ca, CertData: both, KeyData: both,
	})
	if err != nil {
		return err
	}
	return component.Write([]component.File{{Path: n.data.AdminKubeconfig(), Mode: 0o600, Data: data}})
}

// ensureNode creates the Node object, with the address at which other nodes reach this one, before the kubelet looks
// for it. The kubelet would create it with a taint that a cloud controller removes, and nodes may not remove it
// themselves (NodeRestriction).
func (n *nodeRole) ensureNode(ctx context.Context, c *kubeapi.Client) error {
	node := &corev1.Node{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
		ObjectMeta: metav1.ObjectMeta{Name: n.cfg.NodeName, Labels: kubelet.Labels(n.env), Annotations: n.nodeAnnotations()},
		Status:     corev1.NodeStatus{Addresses: n.nodeAddresses()},
	}
	made, err := c.EnsureNode(ctx, node)
	if err != nil || made {
		return err
	}
	return errors.Join(n.updateNode(ctx, c), n.markStarting(ctx, c))
}

// recordNodeUID stores the UID of the worker's Node object, so that a later run can detect that the object was deleted.
func (n *nodeRole) recordNodeUID(node *corev1.Node) error {
	if !n.cfg.Joins() {
		return nil
	}
	r, err := membership.Load(n.data)
	if err != nil || r == nil || r.NodeUID == string(node.UID) {
		return err
	}
	r.NodeUID = string(node.UID)
	return r.Save(n.data)
}

// joinManifests returns the manifests that joining nodes need in a cluster created by rootlessnode.
func (n *nodeRole) joinManifests() ([]byte, error) {
	const foreign = false
	rbac, rbacErr := resources.JoinRBAC(n.cfg, foreign)
	ca, caErr := os.ReadFile(pki.CertFile(pki.ClusterCA))
	if err := errors.Join(rbacErr, caErr); err != nil {
		return nil, err
	}
	server := fmt.Sprintf("https://%s:%d", n.env.PublicIP, n.cfg.API.Port)
	info, infoErr := resources.ClusterInfo(server, ca)
	facts, factsErr := resources.ClusterFacts(n.env)
	if err := errors.Join(infoErr, factsErr); err != nil {
		return nil, err
	}
	var out []byte
	for _, part := range [][]byte{rbac, info, facts} {
		out = append(append(out, "---\n"...), part...)
	}
	return out, nil
}
