package kubeapi

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
)

const clusterRoleBindingsPath = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/"

// HasRoleBindings returns nil if all these ClusterRoleBindings exist. It does not wait.
//
// The API server creates the default ones a second or more after it starts to serve, and its health endpoint reports that
// even later. In a cluster that ran before, they exist from the start.
func (c *conn) HasRoleBindings(ctx context.Context, names ...string) error {
	for _, name := range names {
		err := c.do(ctx, request{method: http.MethodGet, path: clusterRoleBindingsPath + url.PathEscape(name)}, nil)
		if err != nil {
			return fmt.Errorf("read cluster role binding %s: %w", name, err)
		}
	}
	return nil
}
