package pki

import "github.com/rootlessnode/rootlessnode/internal/component"

// LoopbackFlags returns the flags with which kube-controller-manager and kube-scheduler serve on the loopback of the
// node's network namespace. They serve with the certificate name, and delegate authentication and authorization to the
// API server of the kubeconfig.
func LoopbackFlags(name, kubeconfig string, port int) []string {
	return []string{
		component.Flag("authentication-kubeconfig", kubeconfig),
		component.Flag("authorization-kubeconfig", kubeconfig),
		component.Flag("client-ca-file", CertFile(ClusterCA)),
		component.Flag("requestheader-client-ca-file", CertFile(FrontProxyCA)),
		component.Flag("bind-address", component.Loopback),
		component.IntFlag("secure-port", port),
		component.Flag("tls-cert-file", CertFile(name)),
		component.Flag("tls-private-key-file", KeyFile(name)),
	}
}

// LoopbackProbe returns a check that requests /healthz of a program that runs with LoopbackFlags.
func LoopbackProbe(port int) component.Probe {
	return component.Probe{URL: "https://" + component.LoopbackAddress(port) + "/healthz", CAFile: CertFile(ClusterCA)}
}
