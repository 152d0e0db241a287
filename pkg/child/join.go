package child

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

	"github.com/rootlessnode/rootlessnode/pkg/clusterjoin"
	"github.com/rootlessnode/rootlessnode/pkg/component"
	"github.com/rootlessnode/rootlessnode/pkg/component/apiserver"
	"github.com/rootlessnode/rootlessnode/pkg/component/kubelet"
	"github.com/rootlessnode/rootlessnode/pkg/component/pki"
	"github.com/rootlessnode/rootlessnode/pkg/component/resources"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/kubeapi"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
	"github.com/rootlessnode/rootlessnode/pkg/supervisor"
)

// join gets a worker's credentials: the certificate that makes it this node, requested with the bootstrap kubeconfig where
// there is one. Then it waits until the cluster lets nodes read what kube-proxy, flannel and kube-network-policies need. It
// retries while the cluster does not answer; a refused certificate is an error.
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
	return supervisor.Poll(joinPoll, "the right to read what the pod network needs", func(ctx context.Context) error {
		return n.mayRead(ctx, c)
	})(ctx)
}

// mayRead returns an error that names what the cluster does not let its nodes list.
func (n *nodeRole) mayRead(ctx context.Context, c *kubeapi.Client) error {
	wanted := []kubeapi.Resource{{Name: "nodes"}, {Name: "services"}, {Group: "discovery.k8s.io", Name: "endpointslices"}}
	manifests := "`rootlessnode manifests join-rbac`"
	if n.cfg.EnforcesPolicies() {
		wanted = append(wanted, kubeapi.Resource{Name: "pods"}, kubeapi.Resource{Name: "namespaces"},
			kubeapi.Resource{Group: "networking.k8s.io", Name: "networkpolicies"})
		manifests = "`networkPolicy` of the cluster's first node, or `rootlessnode manifests join-rbac --network-policy`,"
	}
	for _, r := range wanted {
		allowed, err := c.MayList(ctx, r)
		if err != nil {
			return err
		}
		if !allowed {
			return fmt.Errorf("list %s: the cluster does not allow it to nodes yet: %s allows it, and so does a first node of this version", r, manifests)
		}
	}
	return nil
}

// joinPoll is the pause between two questions to the cluster, which may be busy or away.
const joinPoll = 500 * time.Millisecond

// nodeCertificate makes a key and has it certified, if there is a bootstrap kubeconfig. It is removed then.
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
		return fmt.Errorf("make the node's key: %w", err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{
		CommonName: pki.NodeUser(n.cfg.NodeName), Organization: []string{pki.GroupNodes},
	}}, key)
	if err != nil {
		return fmt.Errorf("make the node's certificate request: %w", err)
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
			"rootlessnode token create    # on the cluster's first node, for another try")
	}
	keyPEM := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
	if err := keepCertificate(layout.InsideKubeletPKI, append(cert, keyPEM...), time.Now()); err != nil {
		return err
	}
	n.log.WithField("node", n.cfg.NodeName).Info("the cluster has certified this node")
	return os.Remove(layout.InsideBootstrap)
}

// keepCertificate writes certificate and key where the kubelet looks for them and will renew them: in a file of its own with a
// link to it (client-go, util/certificate, certificate_store.go).
func keepCertificate(dir string, both []byte, now time.Time) error {
	if _, err := tls.X509KeyPair(both, both); err != nil {
		return fmt.Errorf("the certificate that the cluster issued: %w", err)
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
	if err := os.Remove(link + ".new"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(path, link+".new"); err != nil {
		return err
	}
	return os.Rename(link+".new", link)
}

// hostKubeconfig writes the worker's own kubeconfig for the host, which is good until the kubelet renews the certificate.
func (n *nodeRole) hostKubeconfig() error {
	both, err := os.ReadFile(pki.NodeCert)
	if err != nil {
		return fmt.Errorf("read the node's certificate: %w", err)
	}
	ca, err := os.ReadFile(pki.CertFile(pki.ClusterCA))
	if err != nil {
		return fmt.Errorf("read the cluster's authority: %w", err)
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

// ensureNode makes the Node object before the kubelet looks for it, with the address by which others reach the node. The
// kubelet would make it with a taint that a cloud's controller takes away, and no node may do that itself (NodeRestriction).
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
	return errors.Join(n.tellNode(ctx, c), n.markStarting(ctx, c))
}

// remember notes which Node object is ours, to know later that it was deleted.
func (n *nodeRole) remember(node *corev1.Node) error {
	if !n.cfg.Joins() {
		return nil
	}
	r, err := clusterjoin.Load(n.data)
	if err != nil || r == nil || r.NodeUID == string(node.UID) {
		return err
	}
	r.NodeUID = string(node.UID)
	return r.Save(n.data)
}

// joinManifests are what nodes that join need of a cluster of ours.
func (n *nodeRole) joinManifests() ([]byte, error) {
	const ours = false
	rbac, rbacErr := resources.JoinRBAC(ours, n.cfg.EnforcesPolicies())
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
