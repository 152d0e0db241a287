// Package etcd renders the datastore of the embedded control plane: one member on loopback, with mutual TLS and a
// separate CA, so that no other certificate of the cluster gives access to it.
//
// Runs in: child side. It only renders; Ready's check makes one request.
package etcd

import (
	"context"
	"strconv"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/pki"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// Name of the component.
const Name = "etcd"

// Names of certificates. ClientCert is that of the API server.
const (
	ClientCert = "apiserver-etcd-client"
	serverCert = "etcd/server"
	peerCert   = "etcd/peer"
)

// Component returns etcd's entry in the catalogue.
func Component() component.Component {
	return component.Component{
		Name: Name, Enabled: component.EmbeddedControlPlane, Programs: []string{Name}, Render: Render, Ready: Ready, Faults: Faults(),
		Ports: func(c *config.NodeConfig) []component.Port {
			return []component.Port{
				component.LoopbackPort(c.Inside.EtcdClientPort, "inside.etcdClientPort"),
				component.LoopbackPort(c.Inside.EtcdPeerPort, "inside.etcdPeerPort"),
				component.LoopbackPort(c.Inside.EtcdMetricsPort, "inside.etcdMetricsPort"),
			}
		},
		Certificates: []component.Certificate{
			pki.Local(serverCert, pki.EtcdCA, "etcd-server"), pki.Local(peerCert, pki.EtcdCA, "etcd-peer"),
		},
		// Certificates are read for each connection, authorities once (client/pkg/transport, listener.go).
		ReadsAuthoritiesOnce: []string{pki.EtcdCA},
	}
}

// dataMode is the mode that etcd requires for its data directory.
const dataMode = 0o700

// Render returns etcd's arguments. Apart from certificates etcd needs no files.
func Render(e component.Env) (component.Rendered, error) {
	in, cp := e.Config.Inside, e.Config.ControlPlane
	client, peer := ClientURL(e), secureURL(in.EtcdPeerPort)
	args := []string{
		component.Flag("name", Name),
		component.Flag("data-dir", layout.InsideEtcd),
		component.Flag("listen-client-urls", client),
		component.Flag("advertise-client-urls", client),
		component.Flag("listen-peer-urls", peer),
		component.Flag("initial-advertise-peer-urls", peer),
		component.Flag("initial-cluster", Name+"="+peer),
		component.Flag("listen-metrics-urls", "http://"+component.LoopbackAddress(in.EtcdMetricsPort)),
		"--client-cert-auth",
		component.Flag("trusted-ca-file", pki.CertFile(pki.EtcdCA)),
		component.Flag("cert-file", pki.CertFile(serverCert)),
		component.Flag("key-file", pki.KeyFile(serverCert)),
		"--peer-client-cert-auth",
		component.Flag("peer-trusted-ca-file", pki.CertFile(pki.EtcdCA)),
		component.Flag("peer-cert-file", pki.CertFile(peerCert)),
		component.Flag("peer-key-file", pki.KeyFile(peerCert)),
		component.IntFlag("snapshot-count", cp.EtcdSnapshotCount),
		component.Flag("quota-backend-bytes", strconv.FormatInt(cp.EtcdQuotaBytes, 10)),
		component.Flag("heartbeat-interval", strconv.FormatInt(cp.EtcdHeartbeat.D().Milliseconds(), 10)),
		component.Flag("election-timeout", strconv.FormatInt(cp.EtcdElection.D().Milliseconds(), 10)),
		component.Flag("log-level", logLevel(e.Config.LogLevel)),
		component.Flag("log-outputs", "stderr"),
		component.Flag("log-format", "console"),
	}
	if cp.EtcdUnsafeNoFsync {
		args = append(args, "--unsafe-no-fsync")
	}
	return component.Rendered{
		Name: Name,
		Dirs: []component.Dir{{Path: layout.InsideEtcd, Mode: dataMode}},
		Path: e.BinDir(Name),
		Args: args,
	}, nil
}

// Ready returns a check on etcd's client port, which succeeds when the member has a leader and can serve.
func Ready(e component.Env) func(context.Context) error {
	return component.Probe{
		URL:      ClientURL(e) + "/readyz",
		CAFile:   pki.CertFile(pki.EtcdCA),
		CertFile: pki.CertFile(ClientCert),
		KeyFile:  pki.KeyFile(ClientCert),
	}.Check
}

// ClientURL returns the URL at which the API server connects to etcd.
func ClientURL(e component.Env) string { return secureURL(e.Config.Inside.EtcdClientPort) }

func secureURL(port int) string { return "https://" + component.LoopbackAddress(port) }

// logLevel returns etcd's log level. Its level info logs routine operations.
func logLevel(level string) string {
	if level == "debug" {
		return level
	}
	return "warn"
}
