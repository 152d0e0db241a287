package pki

import (
	"path/filepath"

	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

// Authorities.
const (
	ClusterCA    = "ca"
	EtcdCA       = "etcd/ca"
	FrontProxyCA = "front-proxy-ca"
)

// Certificates.
const (
	APIServer              = "apiserver"
	APIServerKubeletClient = "apiserver-kubelet-client"
	APIServerEtcdClient    = "apiserver-etcd-client"
	FrontProxyClient       = "front-proxy-client"
	EtcdServer             = "etcd/server"
	EtcdPeer               = "etcd/peer"
	KubeletServer          = "kubelet-server"
	KubeletClient          = "kubelet-client"
	Admin                  = "admin"
	ControllerManager      = "controller-manager"
	Scheduler              = "scheduler"
	KubeProxy              = "kube-proxy"
	Flannel                = "flannel"
	NetworkPolicy          = "network-policy"
)

// Users that certificates carry and that roles are bound to.
const (
	UserKubeletClient     = "rootlessnode:apiserver-kubelet-client"
	UserFlannel           = "rootlessnode:flannel"
	UserNetworkPolicy     = "rootlessnode:network-policy"
	UserAdmin             = "rootlessnode:admin"
	UserKubeProxy         = "system:kube-proxy"
	UserControllerManager = "system:kube-controller-manager"
	UserScheduler         = "system:kube-scheduler"
	// GroupMasters passes every authorization check.
	GroupMasters = "system:masters"
	// GroupNodes is what the Node authorizer asks for, besides NodeUser.
	GroupNodes = "system:nodes"
)

// NodeUser is the user that the kubelet of the node nodeName must be (Node authorizer).
func NodeUser(nodeName string) string { return "system:node:" + nodeName }

const (
	saKey      = "sa.key"
	saPub      = "sa.pub"
	encryption = "encryption-config.yaml"
)

// CertFile and KeyFile are the paths inside of the certificate and the key with one of the names above.
func CertFile(name string) string { return filepath.Join(layout.InsidePKI, name+certSuffix) }

// KeyFile is CertFile's counterpart.
func KeyFile(name string) string { return filepath.Join(layout.InsidePKI, name+keySuffix) }

// ServiceAccountKey and ServiceAccountPub are the paths inside of the key pair that signs service account tokens.
func ServiceAccountKey() string { return filepath.Join(layout.InsidePKI, saKey) }

// ServiceAccountPub is the public half.
func ServiceAccountPub() string { return filepath.Join(layout.InsidePKI, saPub) }

// EncryptionConfig is the path inside of the API server's EncryptionConfiguration.
func EncryptionConfig() string { return filepath.Join(layout.InsidePKI, encryption) }
