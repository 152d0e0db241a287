// Package portfwd keeps what Services and the config promise on the node's address answering on the host.
//
// A pure function says which forwards are wanted; a Forwarder compares them with those that RootlessKit's port manager
// has and adds and removes what differs, again and again until the two agree. One port that cannot be had never stands
// in the way of another. A ledger on disk says which forwards are ours: all others are left alone, and ours are taken
// over again after a restart.
//
// A forward is bound in the parent, outside, and connected in the child. It always aims at the node's tap address and
// not at loopback, since kube-proxy answers NodePorts there only in its iptables mode
// (https://kubernetes.io/docs/reference/networking/virtual-ips/#nodeport-nftables). Its protocol always names the
// address family: a plain "tcp" on 0.0.0.0 would listen on [::] as well.
//
// Runs in: child, or anywhere else from which RootlessKit's api.sock can be reached. It opens no port itself.
package portfwd
