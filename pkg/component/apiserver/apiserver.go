// Package apiserver renders the embedded kube-apiserver: certificates only, Node and RBAC authorization, Secrets
// encrypted at rest, anonymous requests for health alone.
//
// Runs in: child side. It renders; Ready's check makes one request.
package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/rootlessnode/rootlessnode/pkg/component"
	"github.com/rootlessnode/rootlessnode/pkg/component/etcd"
	"github.com/rootlessnode/rootlessnode/pkg/component/pki"
)

// Name of the component.
const Name = "kube-apiserver"

const (
	readyPath = "/readyz"
	livePath  = "/livez"
	// withoutBootstrap leaves out the checks of what a new cluster is given first.
	withoutBootstrap = "exclude=poststarthook/rbac/bootstrap-roles&exclude=poststarthook/scheduling/bootstrap-system-priority-classes"
	// anyAddress: RootlessKit's port driver connects to the tap's address, pods to the Service's, components to loopback.
	anyAddress = "0.0.0.0"
)

type authenticationConfiguration struct {
	component.TypeMeta `json:",inline"`
	Anonymous          anonymous `json:"anonymous"`
}

type anonymous struct {
	Enabled    bool        `json:"enabled"`
	Conditions []condition `json:"conditions"`
}

type condition struct {
	Path string `json:"path"`
}

// Render returns the API server's files and arguments.
func Render(e component.Env) (component.Rendered, error) {
	authn, err := component.YAML(authenticationConfiguration{
		TypeMeta:  component.TypeMeta{APIVersion: "apiserver.config.k8s.io/v1", Kind: "AuthenticationConfiguration"},
		Anonymous: anonymous{Enabled: true, Conditions: openPaths(e)},
	})
	if err != nil {
		return component.Rendered{}, fmt.Errorf("render %s: %w", Name, err)
	}
	authnFile := component.RunFile("apiserver-authentication.yaml")
	admission, err := admissionFiles(e)
	if err != nil {
		return component.Rendered{}, fmt.Errorf("render %s: %w", Name, err)
	}
	var args []string
	for _, part := range [][]string{serving(e), storage(e), authentication(e, authnFile), authorization(), kubelets(), limits(e)} {
		args = append(args, part...)
	}
	if len(admission) > 0 {
		args = append(args, component.Flag("admission-control-config-file", admission[0].Path))
	}
	return component.Rendered{
		Name:  Name,
		Files: append([]component.File{{Path: authnFile, Mode: 0o600, Data: authn}}, admission...),
		Path:  e.BinDir(Name),
		Args:  append(args, e.Config.ControlPlane.APIServerExtraArgs...),
	}, nil
}

// clusterInfoPath is where a node that joins learns of the cluster, before it has any credential (kubeadm's discovery).
const clusterInfoPath = "/api/v1/namespaces/kube-public/configmaps/cluster-info"

// openPaths are those that anybody may ask for. The last is for nodes that join, where there may be any.
func openPaths(e component.Env) []condition {
	open := []condition{{livePath}, {readyPath}, {"/healthz"}}
	if e.Config.Serves() {
		open = append(open, condition{clusterInfoPath})
	}
	return open
}

// advertised is the address of the Service kubernetes' endpoint. That of the tap is another node's own on every other node.
func advertised(e component.Env) string {
	if e.Config.Serves() {
		return e.PublicIP
	}
	return e.NodeIP
}

func serving(e component.Env) []string {
	return []string{
		component.Flag("bind-address", anyAddress),
		component.IntFlag("secure-port", e.Config.Inside.APIServerPort),
		component.Flag("advertise-address", advertised(e)),
		component.Flag("tls-cert-file", pki.CertFile(pki.APIServer)),
		component.Flag("tls-private-key-file", pki.KeyFile(pki.APIServer)),
		component.Flag("service-cluster-ip-range", strings.Join(e.Config.ServiceCIDRs(), ",")),
		component.Flag("allow-privileged", "true"),
		component.IntFlag("v", component.Verbosity(e.Config.LogLevel)),
	}
}

func storage(e component.Env) []string {
	return []string{
		component.Flag("etcd-servers", etcd.ClientURL(e)),
		component.Flag("etcd-cafile", pki.CertFile(pki.EtcdCA)),
		component.Flag("etcd-certfile", pki.CertFile(pki.APIServerEtcdClient)),
		component.Flag("etcd-keyfile", pki.KeyFile(pki.APIServerEtcdClient)),
		component.Flag("encryption-provider-config", pki.EncryptionConfig()),
	}
}

func authentication(e component.Env, config string) []string {
	return []string{
		component.Flag("authentication-config", config),
		component.Flag("client-ca-file", pki.CertFile(pki.ClusterCA)),
		component.Flag("enable-bootstrap-token-auth", "true"),
		component.Flag("service-account-issuer", Issuer(e)),
		component.Flag("service-account-signing-key-file", pki.ServiceAccountKey()),
		component.Flag("service-account-key-file", pki.ServiceAccountPub()),
		component.Flag("requestheader-client-ca-file", pki.CertFile(pki.FrontProxyCA)),
		component.Flag("requestheader-allowed-names", pki.FrontProxyClient),
		component.Flag("requestheader-username-headers", "X-Remote-User"),
		component.Flag("requestheader-group-headers", "X-Remote-Group"),
		component.Flag("requestheader-extra-headers-prefix", "X-Remote-Extra-"),
		component.Flag("proxy-client-cert-file", pki.CertFile(pki.FrontProxyClient)),
		component.Flag("proxy-client-key-file", pki.KeyFile(pki.FrontProxyClient)),
	}
}

func authorization() []string {
	return []string{
		component.Flag("authorization-mode", "Node,RBAC"),
		// In addition to those that are on by default.
		component.Flag("enable-admission-plugins", "NodeRestriction"),
	}
}

func kubelets() []string {
	return []string{
		component.Flag("kubelet-certificate-authority", pki.CertFile(pki.ClusterCA)),
		component.Flag("kubelet-client-certificate", pki.CertFile(pki.APIServerKubeletClient)),
		component.Flag("kubelet-client-key", pki.KeyFile(pki.APIServerKubeletClient)),
		// The default begins with Hostname, which nothing inside resolves: logs and exec would fail.
		component.Flag("kubelet-preferred-address-types", "InternalIP,ExternalIP,Hostname"),
	}
}

func limits(e component.Env) []string {
	cp := e.Config.ControlPlane
	return []string{
		component.IntFlag("max-requests-inflight", cp.MaxRequestsInflight),
		component.IntFlag("max-mutating-requests-inflight", cp.MaxMutatingRequestsInflight),
		component.Flag("profiling", "false"),
	}
}

// Issuer of service account tokens: the name by which every pod reaches the API server.
func Issuer(e component.Env) string {
	return "https://kubernetes.default.svc." + e.Config.Cluster.Domain
}

// Ready asks for readyz, as the administrator. On the first start of a cluster it takes a second or more longer than
// Serving, until the default roles are made: controller manager, scheduler and kube-proxy can do nothing before that.
func Ready(e component.Env) func(context.Context) error {
	return probe(e, readyPath).Check
}

// Serving asks whether the API server answers requests, whoever may be allowed any. It is enough for those whose rights
// are not made of roles: the administrator and, through the Node authorizer, the kubelet.
func Serving(e component.Env) func(context.Context) error {
	return probe(e, readyPath+"?"+withoutBootstrap).Check
}

// Alive asks whether a new process would be better. Not so when etcd is slow or away: a restart, with every watch begun
// anew, is the last thing that a busy machine needs.
func Alive(e component.Env) func(context.Context) error { return alive(e).Check }

// Nor do the default roles count, which a new cluster gets one by one: on a machine where that takes minutes, a server that
// is ended for it begins anew each time. The unit that waits for them knows.
func alive(e component.Env) component.Probe {
	return probe(e, livePath+"?exclude=etcd&"+withoutBootstrap)
}

func probe(e component.Env, path string) component.Probe {
	return component.Probe{
		URL:      e.APIServerURL + path,
		CAFile:   pki.CertFile(pki.ClusterCA),
		CertFile: pki.CertFile(pki.Admin),
		KeyFile:  pki.KeyFile(pki.Admin),
	}
}

// HostURL is the API server's URL for users of the host.
func HostURL(e component.Env) string {
	if e.Config.Joins() {
		return e.APIServerURL
	}
	address := e.Config.API.BindAddress
	if ip := net.ParseIP(address); ip == nil || ip.IsUnspecified() {
		address = component.Loopback
	}
	return "https://" + net.JoinHostPort(address, strconv.Itoa(e.Config.API.Port))
}

// AdminKubeconfig renders the administrator's kubeconfig for users of the host, from the certificates in pkiDir. It is
// to be kept with mode 0600.
func AdminKubeconfig(e component.Env, pkiDir string) ([]byte, error) {
	if e.Config.API.Port == 0 {
		return nil, errors.New("admin kubeconfig: the API server has no port on the host")
	}
	return pki.Kubeconfig(pkiDir, pki.Admin, HostURL(e), ClusterName(e))
}

// ClusterName is the name of cluster and context in kubeconfigs.
func ClusterName(e component.Env) string { return "rootlessnode-" + e.Config.Name }
