package kubeapi

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// RemoveStorageClass deletes a StorageClass if it has this provisioner. Its volumes remain.
func (c objects) RemoveStorageClass(ctx context.Context, name, provisioner string) error {
	path := "/apis/storage.k8s.io/v1/storageclasses/" + url.PathEscape(name)
	class, err := read[storagev1.StorageClass](ctx, c.conn, path)
	if err == nil && (class == nil || class.Provisioner != provisioner) {
		return nil
	}
	if err == nil {
		err = c.do(ctx, request{method: http.MethodDelete, path: path}, nil)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete storage class %s: %w", name, err)
	}
	return nil
}
