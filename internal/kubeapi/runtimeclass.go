package kubeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	nodev1 "k8s.io/api/node/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const runtimeClasses = "/apis/node.k8s.io/v1/runtimeclasses"

// EnsureRuntimeClass creates a RuntimeClass for the handler of the same name, with labels. An existing one is not changed, because its handler
// is immutable and it may belong to the user.
func (c objects) EnsureRuntimeClass(ctx context.Context, name string, labels map[string]string) error {
	class := nodev1.RuntimeClass{
		TypeMeta:   metav1.TypeMeta{APIVersion: nodev1.SchemeGroupVersion.String(), Kind: "RuntimeClass"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Handler: name,
	}
	body, err := json.Marshal(class)
	if err == nil {
		err = c.do(ctx, request{method: http.MethodPost, path: runtimeClasses, contentType: mimeJSON, body: body}, nil)
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create runtime class %s: %w", name, err)
	}
	return nil
}

// RemoveRuntimeClasses deletes the RuntimeClasses with this label for which obsolete returns true.
func (c objects) RemoveRuntimeClasses(ctx context.Context, selector string, obsolete func(name string) bool) error {
	var list nodev1.RuntimeClassList
	if err := c.do(ctx, request{method: http.MethodGet, path: runtimeClasses, query: url.Values{"labelSelector": {selector}}}, &list); err != nil {
		return fmt.Errorf("list runtime classes: %w", err)
	}
	var errs []error
	for _, class := range list.Items {
		if !obsolete(class.Name) {
			continue
		}
		err := c.do(ctx, request{method: http.MethodDelete, path: runtimeClasses + "/" + url.PathEscape(class.Name)}, nil)
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("delete runtime class %s: %w", class.Name, err))
		}
	}
	return errors.Join(errs...)
}
