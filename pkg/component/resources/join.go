package resources

import (
	_ "embed" // the manifests
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"

	"github.com/rootlessnode/rootlessnode/pkg/component"
	"github.com/rootlessnode/rootlessnode/pkg/component/internal/manifest"
)

// Strings, for nothing can write to them: the node role and others ask for these at the same time.
var (
	//go:embed join.yaml
	join string
	//go:embed join-policies.yaml
	joinPolicies string
	//go:embed join-nodes.yaml
	joinNodes string
	//go:embed obsolete.yaml
	obsolete string
)

// What nodes read of a cluster before they are part of it.
const (
	publicNamespace = "kube-public"
	// clusterInfoName and kubeconfigKey are where kubeadm's discovery looks (k8s.io/cluster-bootstrap/token/api).
	clusterInfoName = "cluster-info"
	kubeconfigKey   = "kubeconfig"
	// factsName is the ConfigMap of clusterjoin.Cluster.
	factsName = "rootlessnode"
)

// Objects of join.yaml that not every cluster gets, as "Kind name". A cluster of ours has an approver of its own, which looks
// at more than the controller manager's does; a cluster of others has kube-public and, made by kubeadm, a role for cluster-info.
var (
	onlyForeign = map[string]bool{
		"ClusterRoleBinding rootlessnode:approve-node-client": true, "ClusterRoleBinding rootlessnode:renew-node-client": true,
	}
	onlyOurs = map[string]bool{
		"Namespace kube-public": true, "Role rootlessnode:cluster-info": true, "RoleBinding rootlessnode:cluster-info": true,
	}
)

// JoinRBAC returns what a cluster needs for rootlessnode's workers, as a YAML stream with comments, to be applied in its order:
// the rights of bootstrap tokens and nodes. foreign is for a cluster with another control plane. A cluster of rootlessnode's gets
// the namespace kube-public first, because the API server creates it some time after it is ready, and an admission policy for
// what nodes write. policies adds what kube-network-policies of workers needs: with it each node may read all pods.
func JoinRBAC(foreign, policies bool) ([]byte, error) {
	const separator = "---\n"
	var kept []string
	for document := range strings.SplitSeq(join, "\n"+separator) {
		objects, err := manifest.Decode([]byte(document))
		if err != nil || len(objects) != 1 {
			return nil, fmt.Errorf("join.yaml: %d objects between two lines of dashes: %w", len(objects), err)
		}
		meta, _ := objects[0]["metadata"].(map[string]any)
		id := fmt.Sprint(objects[0]["kind"], " ", meta["name"])
		if foreign && onlyOurs[id] || !foreign && onlyForeign[id] {
			continue
		}
		kept = append(kept, strings.TrimRight(document, "\n")+"\n")
	}
	if !foreign {
		kept = append(kept, joinNodes)
	}
	if policies {
		kept = append(kept, joinPolicies)
	}
	return []byte(strings.Join(kept, separator)), nil
}

// ClusterInfo returns the ConfigMap kube-public/cluster-info, by which holders of a bootstrap token find the API server and
// its authority. server is the URL by which nodes reach it, https://HOST:PORT; ca the authority's certificates in PEM. The
// controller manager's bootstrapsigner adds a signature for each token. Like kubeadm's, its cluster has the empty name.
func ClusterInfo(server string, ca []byte) ([]byte, error) {
	kubeconfig, err := manifest.Objects{{
		"apiVersion": "v1", "kind": "Config", "contexts": nil, "users": nil, "current-context": "", "preferences": map[string]any{},
		"clusters": []any{map[string]any{"name": "", "cluster": map[string]any{
			"server": server, "certificate-authority-data": base64.StdEncoding.EncodeToString(ca),
		}}},
	}}.Encode()
	if err != nil {
		return nil, fmt.Errorf("render %s: %w", clusterInfoName, err)
	}
	return publicConfigMap(clusterInfoName, map[string]any{kubeconfigKey: string(kubeconfig)})
}

// ClusterFacts returns the ConfigMap kube-public/rootlessnode: what all nodes of the cluster agree on. Its keys are the JSON
// names of clusterjoin.Cluster, its numbers are decimal.
func ClusterFacts(e component.Env) ([]byte, error) {
	c, f := e.Config.Cluster, e.Config.Flannel
	data := map[string]any{
		"podCIDR": c.PodCIDR, "serviceCIDR": c.ServiceCIDR, "dnsAddress": c.DNSAddress, "domain": c.Domain,
		"backend": f.Backend, "vxlanPort": strconv.Itoa(f.VXLANPort),
	}
	if e.Config.Network.IPv6 {
		data["podCIDRv6"], data["serviceCIDRv6"] = c.PodCIDRv6, c.ServiceCIDRv6
	}
	return publicConfigMap(factsName, data)
}

func publicConfigMap(name string, data map[string]any) ([]byte, error) {
	return manifest.Objects{{
		"apiVersion": "v1", "kind": "ConfigMap", "data": data,
		"metadata": map[string]any{"name": name, "namespace": publicNamespace},
	}}.Encode()
}

// Obsolete returns the objects that former versions created and that this one deletes, for kubeapi.Client.Remove.
func Obsolete() []byte { return []byte(obsolete) }

// NodePolicy returns the admission policy for what nodes write, which a cluster without workers must not have: there the kubelet
// creates the Node object. The order is that for kubeapi.Client.Remove.
func NodePolicy() []byte { return []byte(joinNodes) }
