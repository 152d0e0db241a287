package membership

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/version"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// maxOlder is how many minor versions a kubelet may be older than its API server. It must not be newer. The same rule
// applies to kube-proxy: https://kubernetes.io/releases/version-skew-policy/#kubelet
const maxOlder = 3

// checkSkew compares the node's version with that of the API server.
func checkSkew(j *joiner, serverVersion, server string) error {
	if j.KubeletVersion == "" {
		return nil
	}
	node, err := version.ParseGeneric(j.KubeletVersion)
	if err != nil {
		return errdefs.Preflight("read the kubelet's version %q: %w", j.KubeletVersion, err).
			Hint("componentsDir: DIR    # with a released kubelet")
	}
	api, err := version.ParseGeneric(serverVersion)
	if err != nil {
		return errdefs.Preflight("read the version %q of the API server at %s: %w", serverVersion, server, err).
			Hintf("curl -k %s/version    # check that this is an API server", server)
	}
	var what string
	switch behind := int(api.Minor()) - int(node.Minor()); {
	case api.Major() != node.Major():
		what = "has a different major version than"
	case behind < 0:
		what = "is newer than"
	case behind > maxOlder:
		what = fmt.Sprintf("is %d minor versions older than", behind)
	default:
		return nil
	}
	oldest := api.Minor() - min(api.Minor(), maxOlder)
	return errdefs.Preflight("the kubelet of this node, %s, %s the API server at %s, %s: a kubelet may be up to %d minor versions older and must not be newer",
		j.KubeletVersion, what, server, serverVersion, maxOlder).
		Hintf("componentsDir: DIR    # with components of Kubernetes v%d.%d to v%d.%d, or upgrade the control plane", api.Major(), oldest, api.Major(), api.Minor())
}
