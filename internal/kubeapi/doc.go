// Package kubeapi implements the few API calls that a node makes to a Kubernetes API server: check its readiness, watch the
// Node and Services, apply manifests, record Events; and for a node that joins a cluster: read the cluster's configuration
// and request a certificate.
//
// It uses client-go's kubeconfig loading, transport (TLS, certificate rotation, credential plugins, HTTP/2 health checks) and
// reflector, and plain REST on top. It does not use typed clients or their schemes, and hence not client-go's recorder of
// Events and certificate requests: all processes of a node contain this package, and these would cost memory even where they
// are not used (docs/dependencies.md has the figures). Watched objects are reduced to the fields that callers use.
//
// Runs in: either. It never retries after the caller's context has ended, and it deletes only objects that the caller names.
package kubeapi
