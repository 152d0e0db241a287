package kubeapi

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
)

const clusterRoleBindingsPath = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/"

// HasRoleBindings returns nil when all these ClusterRoleBindings exist. It asks once.
//
// The API server makes the default ones a second or more after it serves, and its health endpoint says later still that
// it has; in a cluster that was started before they are there from the beginning.
func (c *Client) HasRoleBindings(ctx context.Context, names ...string) error {
	for _, name := range names {
		err := c.do(ctx, request{method: http.MethodGet, path: clusterRoleBindingsPath + url.PathEscape(name)}, nil)
		if err != nil {
			return fmt.Errorf("look for cluster role binding %s: %w", name, err)
		}
	}
	return nil
}
