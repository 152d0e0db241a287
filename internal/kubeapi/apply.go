package kubeapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// FieldManager is the field manager that owns the fields set by Apply.
	FieldManager = "rootlessnode"
	// applyPatience is how long Apply retries one document while the server is starting: connection refused, unavailable,
	// too many requests, or a namespace that the control plane is about to create.
	applyPatience = 15 * time.Second
)

// Apply applies every document of a YAML stream by server-side apply, as FieldManager and with force: it takes over fields
// that another manager set to a different value, and keeps fields that the document does not name. Unknown fields are
// errors. Documents are applied in the given order; a List is applied item by item. All documents are tried, and their
// errors are joined. It returns the objects that were applied.
func (c objects) Apply(ctx context.Context, manifest []byte) ([]ObjectState, error) {
	docs, err := parseManifest(manifest)
	applied, applyErr := applier{c.conn, FieldManager}.all(ctx, docs)
	return applied, errors.Join(err, applyErr)
}

// applier applies documents as a field manager.
type applier struct {
	*conn
	manager string
}

// all tries all documents and returns the objects that were applied, with the joined errors of the others.
func (a applier) all(ctx context.Context, docs []document) ([]ObjectState, error) {
	var applied []ObjectState
	var errs []error
	m := newMapper(a.conn)
	for _, d := range docs {
		o, err := a.one(ctx, m, d)
		if err != nil {
			errs = append(errs, d.fault(fmt.Errorf("apply %s: %w", d, err)))
			continue
		}
		applied = append(applied, stateOf(d, o))
	}
	return applied, errors.Join(errs...)
}

// Remove deletes every object of a YAML stream in the given order and reports whether there was anything to delete. Only the
// kind and the name of a document matter. The last object marks the whole set: if it does not exist, the others are assumed
// to be deleted already, which costs only one request. It is deleted last, and only if all others were deleted. The errors
// are joined.
func (c objects) Remove(ctx context.Context, manifest []byte) (removed bool, err error) {
	docs, err := parseManifest(manifest)
	if err != nil || len(docs) == 0 {
		return false, err
	}
	m := newMapper(c.conn)
	marker, err := m.path(ctx, docs[len(docs)-1])
	if err == nil {
		err = c.do(ctx, request{method: http.MethodGet, path: marker}, nil)
	}
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read %s: %w", docs[len(docs)-1], err)
	}
	var errs []error
	for i, d := range docs {
		if i == len(docs)-1 && len(errs) > 0 {
			break // it shows the next call that objects are left
		}
		path, err := m.path(ctx, d)
		if err == nil {
			err = c.do(ctx, request{method: http.MethodDelete, path: path}, nil)
		}
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("delete %s: %w", d, err))
		}
	}
	return true, errors.Join(errs...)
}

// one applies a document.
func (a applier) one(ctx context.Context, m *mapper, d document) (*metav1.PartialObjectMetadata, error) {
	ctx, cancel := context.WithTimeout(ctx, applyPatience)
	defer cancel()
	delays := a.applyBackoff
	var last error
	for {
		applied := &metav1.PartialObjectMetadata{}
		path, err := m.path(ctx, d)
		if err == nil {
			err = a.do(ctx, request{
				method: http.MethodPatch, path: path, contentType: mimeApplyPatch, body: d.json,
				query: url.Values{
					"fieldManager":    {a.manager},
					"force":           {"true"},
					"fieldValidation": {"Strict"},
				},
			}, applied)
		}
		if last != nil && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			return nil, fmt.Errorf("%w; last: %w", err, last)
		}
		if err == nil || !isRetryable(err) || !pause(ctx, &delays, err) {
			return applied, err
		}
		last = err
	}
}

// isRetryable reports whether a retry after err may succeed.
func isRetryable(err error) bool {
	var se *apierrors.StatusError
	if !errors.As(err, &se) {
		return !errors.Is(err, errUnknownKind) && !errors.Is(err, context.Canceled) &&
			!errors.Is(err, context.DeadlineExceeded)
	}
	switch se.ErrStatus.Code {
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		// 500 is not retried, because it is also the answer to a field that is not in the schema.
		return true
	case http.StatusForbidden: // an admission plugin whose informers have not synced
		return strings.Contains(se.ErrStatus.Message, "not yet ready to handle request")
	case http.StatusNotFound:
		return se.ErrStatus.Details != nil && se.ErrStatus.Details.Kind == "namespaces"
	}
	return false
}

// defaultNamespace is the namespace of objects without one.
const defaultNamespace = "default"

var errUnknownKind = errors.New("the API server does not know this kind")

// wireResource is one entry of a discovery document.
type wireResource struct {
	Name       string `json:"name"`
	Kind       string `json:"kind"`
	Namespaced bool   `json:"namespaced"`
}

// mapper finds the URL path of an object. The kinds of a node's own manifests are built in; others are looked up in the
// server's discovery, once for each group and version.
type mapper struct {
	c    *conn
	seen map[string][]wireResource
}

func newMapper(c *conn) *mapper { return &mapper{c: c, seen: map[string][]wireResource{}} }

func (m *mapper) path(ctx context.Context, d document) (string, error) {
	prefix := "/apis/" + d.APIVersion
	if !strings.Contains(d.APIVersion, "/") {
		prefix = "/api/" + d.APIVersion
	}
	res, ok := knownKind(d.APIVersion, d.Kind)
	if !ok {
		var err error
		if res, err = m.discover(ctx, prefix, d.Kind); err != nil {
			return "", err
		}
	}
	if res.Namespaced {
		ns := d.Metadata.Namespace
		if ns == "" {
			ns = defaultNamespace
		}
		prefix += "/namespaces/" + url.PathEscape(ns)
	}
	return prefix + "/" + res.Name + "/" + url.PathEscape(d.Metadata.Name), nil
}

func (m *mapper) discover(ctx context.Context, prefix, kind string) (wireResource, error) {
	if _, ok := m.seen[prefix]; !ok {
		var list struct {
			Resources []wireResource `json:"resources"`
		}
		if err := m.c.do(ctx, request{method: http.MethodGet, path: prefix}, &list); err != nil {
			return wireResource{}, err
		}
		m.seen[prefix] = list.Resources
	}
	for _, r := range m.seen[prefix] {
		if r.Kind == kind && !strings.Contains(r.Name, "/") { // a slash is a subresource
			return r, nil
		}
	}
	return wireResource{}, errUnknownKind
}

func knownKind(apiVersion, kind string) (wireResource, bool) {
	name, namespaced := "", true
	switch apiVersion + " " + kind {
	case "v1 Namespace":
		name, namespaced = "namespaces", false
	case "v1 Node":
		name, namespaced = "nodes", false
	case "v1 ServiceAccount":
		name = "serviceaccounts"
	case "v1 ConfigMap":
		name = "configmaps"
	case "v1 Secret":
		name = "secrets"
	case "v1 Service":
		name = "services"
	case "apps/v1 Deployment":
		name = "deployments"
	case "apps/v1 DaemonSet":
		name = "daemonsets"
	case "admissionregistration.k8s.io/v1 ValidatingAdmissionPolicy":
		name, namespaced = "validatingadmissionpolicies", false
	case "admissionregistration.k8s.io/v1 ValidatingAdmissionPolicyBinding":
		name, namespaced = "validatingadmissionpolicybindings", false
	case "apiregistration.k8s.io/v1 APIService":
		name, namespaced = "apiservices", false
	case "rbac.authorization.k8s.io/v1 ClusterRole":
		name, namespaced = "clusterroles", false
	case "rbac.authorization.k8s.io/v1 ClusterRoleBinding":
		name, namespaced = "clusterrolebindings", false
	case "rbac.authorization.k8s.io/v1 Role":
		name = "roles"
	case "rbac.authorization.k8s.io/v1 RoleBinding":
		name = "rolebindings"
	}
	return wireResource{Name: name, Kind: kind, Namespaced: namespaced}, name != ""
}
