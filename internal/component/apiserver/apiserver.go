// Package apiserver renders the embedded kube-apiserver: authentication with certificates, Node and RBAC authorization,
// Secrets encrypted at rest, anonymous requests for health checks only.
//
// Runs in: child side. It only renders; Ready's check makes one request.
package apiserver

import (
	"context"
	_ "embed" // the manifest
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/etcd"
	"github.com/rootlessnode/rootlessnode/internal/component/pki"
	"github.com/rootlessnode/rootlessnode/internal/proxyenv"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
)

// Name of the component.
const Name = "kube-apiserver"

// Names of certificates.
const (
	Certificate      = "apiserver"
	Admin            = "admin"
	kubeletClient    = "apiserver-kubelet-client"
	frontProxyClient = "front-proxy-client"
)

// userKubeletClient is the user of the API server at kubelets.
const userKubeletClient = "rootlessnode:apiserver-kubelet-client"

//go:embed rbac.yaml
var rbac string

// Component returns the API server's entry in the catalogue.
func Component() component.Component {
	return component.Component{
		Name: Name, Enabled: component.EmbeddedControlPlane, Programs: []string{Name}, OutlivesPods: true,
		Ports: ports, HostCertificates: certificates,
		// Its client of etcd is etcd's. All other files are watched (k8s.io/apiserver, dynamiccertificates).
		ReadsAuthoritiesOnce: []string{pki.EtcdCA},
		Manifest:             func(component.Env) ([]byte, error) { return []byte(rbac), nil },
		Needs: func(component.Env) []supervisor.Need {
			// The API server waits for etcd itself, and has a second of work to do before it connects.
			return []supervisor.Need{{Name: etcd.Name, State: supervisor.Running}}
		},
		Render: Render, Ready: Serving, Live: Alive,
	}
}

func ports(c *config.NodeConfig) []component.Port {
	port := component.Port{Proto: "tcp", Number: c.Inside.APIServerPort, Address: component.AnyAddress, Field: "inside.apiServerPort"}
	if ip, err := netip.ParseAddr(c.API.BindAddress); err == nil {
		port.Forward = &component.Forward{
			Name: "api", Role: "API server", Port: c.API.Port, Field: "api.port", Address: ip, Instead: fmt.Sprintf("--set api.port=%d", c.API.Port+1),
		}
	}
	return []component.Port{port}
}

const (
	readyPath = "/readyz"
	livePath  = "/livez"
	// withoutBootstrap excludes the checks for the initial objects of a new cluster.
	withoutBootstrap = "exclude=poststarthook/rbac/bootstrap-roles&exclude=poststarthook/scheduling/bootstrap-system-priority-classes"
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
		Anonymous: anonymous{Enabled: true, Conditions: anonymousPaths(e)},
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
	var env []string
	if e.Config.Serves() {
		// It connects to the kubelets of other nodes, whose addresses are not known in advance, and must not do so through a proxy.
		env = proxyenv.None()
	}
	return component.Rendered{
		Name:  Name,
		Env:   env,
		Files: append([]component.File{{Path: authnFile, Mode: 0o600, Data: authn}}, admission...),
		Path:  e.BinDir(Name),
		Args:  append(args, e.Config.ControlPlane.APIServerExtraArgs...),
	}, nil
}

// clusterInfoPath is the path at which a joining node finds the cluster's URL and CA without credentials (kubeadm's
// discovery).
const clusterInfoPath = "/api/v1/namespaces/kube-public/configmaps/cluster-info"

// anonymousPaths returns the paths that are open to anonymous requests. The last one is for joining nodes.
func anonymousPaths(e component.Env) []condition {
	open := []condition{{livePath}, {readyPath}, {"/healthz"}}
	if e.Config.Serves() {
		open = append(open, condition{clusterInfoPath})
	}
	return open
}

// advertised returns the address of the endpoint of the Service kubernetes. In a multi-node cluster it cannot be the
// tap's address, because each node uses that address for itself.
func advertised(e component.Env) string {
	if e.Config.Serves() {
		return e.PublicIP
	}
	return e.NodeIP
}

func serving(e component.Env) []string {
	return []string{
		// RootlessKit's port driver connects to the tap's address, pods to the Service's address, components to loopback.
		component.Flag("bind-address", component.AnyAddress),
		component.IntFlag("secure-port", e.Config.Inside.APIServerPort),
		component.Flag("advertise-address", advertised(e)),
		component.Flag("tls-cert-file", pki.CertFile(Certificate)),
		component.Flag("tls-private-key-file", pki.KeyFile(Certificate)),
		component.Flag("service-cluster-ip-range", strings.Join(e.Config.ServiceCIDRs(), ",")),
		component.Flag("allow-privileged", "true"),
		component.IntFlag("v", component.Verbosity(e.Config.LogLevel)),
	}
}

func storage(e component.Env) []string {
	return []string{
		component.Flag("etcd-servers", etcd.ClientURL(e)),
		component.Flag("etcd-cafile", pki.CertFile(pki.EtcdCA)),
		component.Flag("etcd-certfile", pki.CertFile(etcd.ClientCert)),
		component.Flag("etcd-keyfile", pki.KeyFile(etcd.ClientCert)),
		component.Flag(encryptionFlag, pki.EncryptionConfig()),
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
		component.Flag("requestheader-allowed-names", frontProxyClient),
		component.Flag("requestheader-username-headers", "X-Remote-User"),
		component.Flag("requestheader-group-headers", "X-Remote-Group"),
		component.Flag("requestheader-extra-headers-prefix", "X-Remote-Extra-"),
		component.Flag("proxy-client-cert-file", pki.CertFile(frontProxyClient)),
		component.Flag("proxy-client-key-file", pki.KeyFile(frontProxyClient)),
	}
}

func authorization() []string {
	return []string{
		component.Flag("authorization-mode", "Node,RBAC"),
		// In addition to the default plugins.
		component.Flag("enable-admission-plugins", "NodeRestriction"),
	}
}

func kubelets() []string {
	return []string{
		component.Flag("kubelet-certificate-authority", pki.CertFile(pki.ClusterCA)),
		component.Flag("kubelet-client-certificate", pki.CertFile(kubeletClient)),
		component.Flag("kubelet-client-key", pki.KeyFile(kubeletClient)),
		// The default starts with Hostname, which cannot be resolved inside; logs and exec would fail.
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

// Issuer returns the issuer of service account tokens: the name of the API server for pods.
func Issuer(e component.Env) string {
	return "https://kubernetes.default.svc." + e.Config.Cluster.Domain
}

// Ready returns a check that requests readyz as the administrator. At the first start of a cluster it succeeds a second
// or more later than Serving, when the default roles exist: the controller manager, the scheduler and kube-proxy cannot
// work without them.
func Ready(e component.Env) func(context.Context) error {
	return probe(e, readyPath).Check
}

// Serving returns a check that the API server responds to requests, before the default roles exist. It is sufficient
// for users whose access does not depend on roles: the administrator and, because of the Node authorizer, the kubelet.
func Serving(e component.Env) func(context.Context) error {
	return probe(e, readyPath+"?"+withoutBootstrap).Check
}

// Alive returns a check that fails if a restart of the API server may help. A slow or unavailable etcd does not count,
// because a restart, which also restarts all watches, would add load to a busy machine.
func Alive(e component.Env) func(context.Context) error { return alive(e).Check }

// The default roles do not count either. A new cluster gets them one by one, and if that takes minutes on a slow
// machine, each restart would begin again. The unit api-roles waits for them.
func alive(e component.Env) component.Probe {
	return probe(e, livePath+"?exclude=etcd&"+withoutBootstrap)
}

func probe(e component.Env, path string) component.Probe {
	return component.Probe{
		URL:      e.APIServerURL + path,
		CAFile:   pki.CertFile(pki.ClusterCA),
		CertFile: pki.CertFile(Admin),
		KeyFile:  pki.KeyFile(Admin),
	}
}

// HostURL returns the URL of the API server for users of the host.
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

// AdminKubeconfig renders the admin kubeconfig for users of the host, from the certificates in pkiDir. It is a secret
// and must be written with mode 0600.
func AdminKubeconfig(e component.Env, pkiDir string) ([]byte, error) {
	if e.Config.API.Port == 0 {
		return nil, errors.New("admin kubeconfig: the API server has no port on the host")
	}
	return pki.Kubeconfig(pkiDir, Admin, HostURL(e), ClusterName(e))
}

// ClusterName returns the name of the cluster and context in kubeconfigs.
func ClusterName(e component.Env) string { return "rootlessnode-" + e.Config.Name }
