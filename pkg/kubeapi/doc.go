// Package kubeapi makes the few calls that a node needs of a Kubernetes API server: is it ready, what does this Node
// look like, which Services are there, apply our own manifests, record an Event; and of a cluster that a node joins: what
// does it say of itself, give this node a certificate.
//
// It stands on client-go's kubeconfig loading and transport (TLS, certificate rotation, credential plugins, HTTP/2
// health checks) and on plain REST above them. It uses no clientset, no scheme and no informer: the processes of a node
// all carry this package, and each of those costs memory and start-up time whether or not it is used. Objects are
// decoded into the smallest form that serves the purpose, so that a cluster's managedFields never occupy memory here.
//
// Runs in: either. It never retries for longer than the caller's context lives, and it deletes only what it was told to by
// name.
package kubeapi
