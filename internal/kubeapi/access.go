package kubeapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"

	authorizationv1 "k8s.io/api/authorization/v1"
)

// Resource is an API resource: its group, which is empty for the core group, and its plural name.
type Resource struct{ Group, Name string }

func (r Resource) String() string {
	if r.Group == "" {
		return r.Name
	}
	return r.Name + "." + r.Group
}

// MayList reports whether the client's user may list and watch all objects of r.
func (c *conn) MayList(ctx context.Context, r Resource) (bool, error) {
	for _, verb := range []string{"list", "watch"} {
		review := authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Group: r.Group, Resource: r.Name},
		}}
		review.APIVersion, review.Kind = "authorization.k8s.io/v1", "SelfSubjectAccessReview"
		body, err := json.Marshal(&review)
		if err == nil {
			err = c.do(ctx, request{
				method: http.MethodPost, path: "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", contentType: mimeJSON, body: body,
			}, &review)
		}
		if err != nil {
			return false, fmt.Errorf("check permission to %s %s: %w", verb, r, err)
		}
		if !review.Status.Allowed {
			return false, nil
		}
	}
	return true, nil
}
