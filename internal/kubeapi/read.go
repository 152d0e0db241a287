package kubeapi

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// ConfigMap returns the data of a ConfigMap: nil if it does not exist, empty but not nil if it has no data.
func (c *conn) ConfigMap(ctx context.Context, namespace, name string) (map[string]string, error) {
	return readData[string](ctx, c, "configmaps", namespace, name)
}

// Secret returns the decoded data of a Secret: nil if it does not exist, empty but not nil if it has no data.
func (c *conn) Secret(ctx context.Context, namespace, name string) (map[string][]byte, error) {
	return readData[[]byte](ctx, c, "secrets", namespace, name)
}

func readData[V string | []byte](ctx context.Context, c *conn, resource, namespace, name string) (map[string]V, error) {
	var obj struct {
		Data map[string]V `json:"data"`
	}
	path := namespacesPath + "/" + url.PathEscape(namespace) + "/" + resource + "/" + url.PathEscape(name)
	err := c.do(ctx, request{method: http.MethodGet, path: path}, &obj)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read %s %s/%s: %w", resource, namespace, name, err)
	case obj.Data == nil:
		return map[string]V{}, nil
	}
	return obj.Data, nil
}
