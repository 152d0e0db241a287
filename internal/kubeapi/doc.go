// Package kubeapi implements the few API calls that a node makes to a Kubernetes API server: check its readiness, watch the
// Node and Services, apply manifests, record Events; and for a node that joins a cluster: read the cluster's configuration
// and request a certificate.
//
// It uses client-go's kubeconfig loading and transport (TLS, certificate rotation, credential plugins, HTTP/2 health checks)
// and plain REST on top. It does not use clientsets, schemes or informers: all processes of a node contain this package, and
// these would cost memory and start-up time even where they are not used. Objects are decoded into small structs with the
// needed fields, so that managedFields never occupy memory.
//
// Runs in: either. It never retries after the caller's context has ended, and it deletes only objects that the caller names.
package kubeapi
