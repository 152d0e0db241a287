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

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/clusterjoin"
	"github.com/rootlessnode/rootlessnode/pkg/component"
	"github.com/rootlessnode/rootlessnode/pkg/component/apiserver"
	"github.com/rootlessnode/rootlessnode/pkg/component/flannel"
	"github.com/rootlessnode/rootlessnode/pkg/component/kubelet"
	"github.com/rootlessnode/rootlessnode/pkg/component/kubeproxy"
	"github.com/rootlessnode/rootlessnode/pkg/component/networkpolicy"
	"github.com/rootlessnode/rootlessnode/pkg/component/pki"
	"github.com/rootlessnode/rootlessnode/pkg/component/resources"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/kubeapi"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
	"github.com/rootlessnode/rootlessnode/pkg/supervisor"
)

// join gets a worker's credentials: the certificate that makes it this node, asked for with the bootstrap kubeconfig where
// there is one, and by that the tokens of kube-proxy, flannel and kube-network-policies, as far as they are the node's. A
// cluster that does not answer is asked again; what it refuses is an error.
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
	files := map[string]string{resources.SecretKubeProxy: kubeproxy.TokenFile()}
	if n.cfg.CNI == config.CNIFlannel {
		files[resources.SecretFlannel] = flannel.TokenFile()
	}
	if n.cfg.EnforcesPolicies() {
		files[resources.SecretNetworkPolicy] = networkpolicy.TokenFile()
	}
	return supervisor.Poll(joinPoll, "the tokens of kube-proxy and the pod network", func(ctx context.Context) error {
		for name, path := range files {
			secret, err := c.Secret(ctx, resources.JoinNamespace, name)
			if err == nil && len(secret[corev1.ServiceAccountTokenKey]) == 0 {
				err = errors.New("there is none")
			}
			if err != nil {
				maker := "`rootlessnode manifests join-rbac`"
				if name == resources.SecretNetworkPolicy {
					maker = "networkPolicy on the cluster's first node, or `rootlessnode manifests join-rbac --network-policy`,"
				}
				return fmt.Errorf("read Secret %s/%s (%s makes it): %w", resources.JoinNamespace, name, maker, err)
			}
			err = component.Write([]component.File{{Path: path, Mode: 0o600, Data: secret[corev1.ServiceAccountTokenKey]}})
			if err != nil {
				return err
			}
		}
		return nil
	})(ctx)
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
	link := filepath.Join(dir, filepath.Base(kubelet.ClientCert))
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
	both, err := os.ReadFile(kubelet.ClientCert)
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

// proxyClient reads what kube-proxy may read.
func (n *nodeRole) proxyClient() (*kubeapi.Client, error) {
	n.proxyOnce.Do(func() {
		var data []byte
		if data, n.proxyErr = kubeproxy.Kubeconfig(n.env); n.proxyErr != nil {
			return
		}
		path := component.RunFile("ports.kubeconfig")
		if n.proxyErr = component.Write([]component.File{{Path: path, Mode: 0o600, Data: data}}); n.proxyErr == nil {
			n.proxy, n.proxyErr = kubeapi.New(path, kubeapi.Options{UserAgent: "rootlessnode", Log: n.log})
		}
	})
	return n.proxy, n.proxyErr
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
