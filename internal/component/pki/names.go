package pki

import (
	"path/filepath"

	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// Names of authorities.
const (
	ClusterCA    = "ca"
	EtcdCA       = "etcd/ca"
	FrontProxyCA = "front-proxy-ca"
)

// GroupNodes is the group that the Node authorizer requires, in addition to NodeUser.
const GroupNodes = "system:nodes"

// NodeUser returns the user name that the Node authorizer requires of the kubelet on node nodeName.
func NodeUser(nodeName string) string { return "system:node:" + nodeName }

const (
	saKey      = "sa.key"
	saPub      = "sa.pub"
	encryption = "encryption-config.yaml"
)

// CertFile returns the path inside of the certificate with one of the names above.
func CertFile(name string) string { return filepath.Join(layout.InsidePKI, name+certSuffix) }

// KeyFile returns the path inside of the key with one of the names above.
func KeyFile(name string) string { return filepath.Join(layout.InsidePKI, name+keySuffix) }

// ServiceAccountKey returns the path inside of the private key that signs service account tokens.
func ServiceAccountKey() string { return filepath.Join(layout.InsidePKI, saKey) }

// ServiceAccountPub returns the path inside of the public key that verifies service account tokens.
func ServiceAccountPub() string { return filepath.Join(layout.InsidePKI, saPub) }

// EncryptionConfig returns the path inside of the API server's EncryptionConfiguration.
func EncryptionConfig() string { return filepath.Join(layout.InsidePKI, encryption) }
