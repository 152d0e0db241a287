// Package portfwd keeps what Services and pods promise on the node's address answering on the host.
//
// A pure function (Wanted) says which forwards are wanted; a Forwarder compares them with those that RootlessKit's port
// manager has and adds and removes what differs, again and again until the two agree. One port that cannot be had never
// stands in the way of another; it is asked for again until it can. A ledger on disk says which forwards are ours: all
// others are left alone, and ours are taken over again after a restart.
//
// It needs nothing else of rootlessnode. A distribution that runs Kubernetes under RootlessKit gives New the API socket of
// RootlessKit (Dial) and its own sources of Services, and where it likes of endpoints and pods; then Run does the rest
// until its context ends. A source is one method that tells all there is and then what changes: an informer's handlers
// call the sink's methods of the same names. See the example of New.
//
// A forward is bound in the parent, outside, and connected in the child. It aims at the node's tap address and not at
// loopback, since kube-proxy answers NodePorts there only in its iptables mode
// (https://kubernetes.io/docs/reference/networking/virtual-ips/#nodeport-nftables); at a pod's own address for its host
// ports; and at the cluster address of Services without node ports. Its protocol always names the address family: a plain
// "tcp" on 0.0.0.0 would listen on [::] as well.
//
// Users of the cluster decide about ports of the host only as far as Config allows, and do not take ports from each other: see
// Wanted for the order of owners, Config.AnnotationNamespaces, Config.BindAnywhere and Config.ExternalIPs. Services with source
// ranges need a SourceFilter, which RootlessKit's own port drivers do not have; without one their ports stay closed.
//
// Refusals are told apart by what RootlessKit answers, which is the kernel's error in words. The host on which it binds
// cannot be probed from inside the node, so asking again is the probe: it costs a fraction of a millisecond.
//
// Runs in: child, or anywhere else from which RootlessKit's api.sock can be reached. It opens no port itself.
package portfwd
