package pki

import "github.com/rootlessnode/rootlessnode/pkg/component"

// LoopbackFlags are the flags by which a control plane program serves on the loopback of the node's network namespace:
// with the certificate name, which also says who it is, and leaving it to the API server, which kubeconfig reaches, who
// may ask what. kube-controller-manager and kube-scheduler share them.
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

// LoopbackProbe asks /healthz of a program that serves as LoopbackFlags say.
func LoopbackProbe(port int) component.Probe {
	return component.Probe{URL: "https://" + component.LoopbackAddress(port) + "/healthz", CAFile: CertFile(ClusterCA)}
}
