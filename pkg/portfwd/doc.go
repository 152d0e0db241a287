// Package portfwd forwards ports of the host to the Services and pods of a node under RootlessKit.
//
// The pure function Wanted computes the wanted forwards. A Forwarder compares them with those of RootlessKit's port manager
// and adds and removes the differences until the two agree. A port that cannot be opened never blocks another one; it is
// retried until it can be opened. A ledger on disk records the forwards of the Forwarder: it does not touch others, and
// takes its own over after a restart.
//
// The package does not depend on the rest of rootlessnode. A distribution that runs Kubernetes under RootlessKit passes New
// the API socket of RootlessKit (Dial) and its own source of Services, and optionally sources of endpoints and pods. Run
// does the rest until its context ends. A source is one method that reports the complete list and then the changes; the
// handlers of an informer call the sink's methods of the same names. See the example of New.
//
// A forward is bound in the parent, outside, and connected in the child. It connects to the node's tap address and not to
// loopback, because kube-proxy serves NodePorts on loopback only in its iptables mode
// (https://kubernetes.io/docs/reference/networking/virtual-ips/#nodeport-nftables). For host ports of pods it connects to
// the pod's own address, and for Services without node ports to the cluster address. The protocol of a forward always names
// the address family, because a plain "tcp" on 0.0.0.0 would listen on [::] as well.
//
// Users of the cluster control ports of the host only as far as Config allows, and cannot take ports from each other: see
// Wanted for the order of owners, and Config.AnnotationNamespaces, Config.BindAnywhere and Config.ExternalIPs. Services with
// source ranges need a SourceFilter. RootlessKit's own port drivers do not have one; without it, the ports of these Services
// stay closed.
//
// The reason of a failure is derived from RootlessKit's answer, which contains the text of the kernel's error. The host
// cannot be probed from inside the node, so a port is checked by trying again, which takes a fraction of a millisecond.
//
// Runs in: child, or any other place from which RootlessKit's api.sock is reachable. It opens no port itself.
package portfwd
