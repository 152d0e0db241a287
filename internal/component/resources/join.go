package resources

import (
	_ "embed" // the manifests
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/catalogue"
	"github.com/rootlessnode/rootlessnode/internal/component/internal/manifest"
)

// Strings are immutable, so concurrent callers can share them.
var (
	//go:embed join.yaml
	join string
	//go:embed join-nodes.yaml
	joinNodes string
	//go:embed obsolete.yaml
	obsolete string
)

// Objects that nodes read before they are part of the cluster.
const (
	publicNamespace = "kube-public"
	// clusterInfoName and kubeconfigKey are defined by kubeadm's discovery (k8s.io/cluster-bootstrap/token/api).
	clusterInfoName = "cluster-info"
	kubeconfigKey   = "kubeconfig"
	// factsName is the ConfigMap of membership.Cluster.
	factsName = "rootlessnode"
)

// Objects of join.yaml that only some clusters need, as "Kind name". A cluster of rootlessnode has its own approver,
// which checks more than the controller manager's does. A foreign cluster has kube-public and, if kubeadm created it, a
// role for cluster-info.
var (
	onlyForeign = map[string]bool{
		"ClusterRoleBinding rootlessnode:approve-node-client": true, "ClusterRoleBinding rootlessnode:renew-node-client": true,
	}
	onlyOwn = map[string]bool{
		"Namespace kube-public": true, "Role rootlessnode:cluster-info": true, "RoleBinding rootlessnode:cluster-info": true,
	}
)

// JoinRBAC returns the objects that a cluster needs for rootlessnode's workers, as a YAML stream with comments, to be
// applied in order: the permissions of bootstrap tokens and nodes. Set foreign for a cluster with another control
// plane. A cluster of rootlessnode also gets the namespace kube-public, because the API server creates it only some
// time after it is ready, and an admission policy for writes of nodes. c selects the components of the workers, which
// may need more permissions.
func JoinRBAC(c *config.NodeConfig, foreign bool) ([]byte, error) {
	const separator = "---\n"
	var kept []string
	for document := range strings.SplitSeq(join, "\n"+separator) {
		objects, err := manifest.Decode([]byte(document))
		if err != nil || len(objects) != 1 {
			return nil, fmt.Errorf("join.yaml: %d objects in one document: %w", len(objects), err)
		}
		meta, _ := objects[0]["metadata"].(map[string]any)
		id := fmt.Sprint(objects[0]["kind"], " ", meta["name"])
		if foreign && onlyOwn[id] || !foreign && onlyForeign[id] {
			continue
		}
		kept = append(kept, strings.TrimRight(document, "\n")+"\n")
	}
	if !foreign {
		kept = append(kept, joinNodes)
	}
	for _, e := range catalogue.Enabled(c) {
		if e.Worker.Manifest != "" {
			kept = append(kept, e.Worker.Manifest)
		}
	}
	return []byte(strings.Join(kept, separator)), nil
}

// ClusterInfo returns the ConfigMap kube-public/cluster-info, in which holders of a bootstrap token find the API server
// and its CA. server is the URL for nodes, https://HOST:PORT; ca are the CA certificates in PEM. The controller
// manager's bootstrapsigner adds a signature for each token. As in kubeadm's ConfigMap, the cluster's name is empty.
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

// ClusterFacts returns the ConfigMap kube-public/rootlessnode, which contains the settings that are the same on all
// nodes of the cluster. Its keys are the JSON names of membership.Cluster, and its numbers are decimal.
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

// Obsolete returns the objects that earlier versions created and that this version deletes, for kubeapi.Client.Remove.
func Obsolete() []byte { return []byte(obsolete) }

// NodePolicy returns the admission policy for writes of nodes. A cluster without workers must not have it, because
// there the kubelet creates the Node object. The order is that for kubeapi.Client.Remove.
func NodePolicy() []byte { return []byte(joinNodes) }
