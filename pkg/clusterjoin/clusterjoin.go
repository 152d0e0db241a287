// Package clusterjoin is the host's part of becoming a worker of a cluster: it finds the cluster by a bootstrap token, as
// kubeadm does, pins its authority, compares versions, learns what all nodes of it agree on, and notes all that in the data
// dir, so that later starts need no token. It changes nothing in the cluster.
//
// Runs in: parent.
package clusterjoin

// Record is what a worker knows of its cluster. It is kept in layout.Data.JoinRecord.
type Record struct {
	// Server is the API server's URL, https://HOST:PORT.
	Server string `json:"server"`
	// NodeName and NodeUID are the Node object's; the UID is empty until the node has registered.
	NodeName string `json:"nodeName"`
	NodeUID  string `json:"nodeUID,omitempty"`
	// Cluster is what the cluster's ConfigMap says, nil if it has none.
	Cluster *Cluster `json:"cluster,omitempty"`
}

// Cluster is what all nodes of a cluster of ours agree on: the data of the ConfigMap kube-public/rootlessnode.
type Cluster struct {
	PodCIDR       string `json:"podCIDR"`
	ServiceCIDR   string `json:"serviceCIDR"`
	DNSAddress    string `json:"dnsAddress"`
	Domain        string `json:"domain"`
	PodCIDRv6     string `json:"podCIDRv6,omitempty"`
	ServiceCIDRv6 string `json:"serviceCIDRv6,omitempty"`
	Backend       string `json:"backend"`
	VXLANPort     int    `json:"vxlanPort"`
}
