package kubeapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const definitionsGroup = "apiextensions.k8s.io"

// establishPatience is how long a set waits for definitions of custom resources.
const establishPatience = 15 * time.Second

func (d document) isNamespace() bool { return d.Kind == "Namespace" && d.group() == "" }

func (d document) isDefinition() bool {
	return d.Kind == "CustomResourceDefinition" && d.group() == definitionsGroup
}

// waitDefinitions waits until the API server serves the kinds that the definitions in docs define.
func (c sets) waitDefinitions(ctx context.Context, docs []document) error {
	ctx, cancel := context.WithTimeout(ctx, establishPatience)
	defer cancel()
	var errs []error
	for _, d := range docs {
		if !d.isDefinition() {
			continue
		}
		delays := c.applyBackoff
		for {
			err := c.served(ctx, d)
			if err == nil || !pause(ctx, &delays, err) {
				if err != nil {
					errs = append(errs, d.fault(fmt.Errorf("wait for %s: %w", d, err)))
				}
				break
			}
		}
	}
	return errors.Join(errs...)
}

// served returns an error if the API server does not serve a definition yet.
func (c sets) served(ctx context.Context, d document) error {
	type version struct {
		Name   string `json:"name"`
		Served bool   `json:"served"`
	}
	var definition struct {
		Spec struct {
			Group string `json:"group"`
			Names struct {
				Kind string `json:"kind"`
			} `json:"names"`
			Versions []version `json:"versions"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(d.json, &definition); err != nil {
		return err
	}
	for _, v := range definition.Spec.Versions {
		if !v.Served {
			continue
		}
		prefix := "/apis/" + definition.Spec.Group + "/" + v.Name
		if _, err := newMapper(c.conn).discover(ctx, prefix, definition.Spec.Names.Kind); err != nil {
			return err
		}
	}
	return nil
}

// member is an object that has the label of a set, with the path of the object.
type member struct {
	id   ObjectID
	path string
	uid  types.UID
}

// prune deletes the members of the set of the given kinds that are not in it any more. Namespaces and definitions are deleted last.
func (c sets) prune(ctx context.Context, s *Set, kinds []string) error {
	keep := s.Objects()
	var first, last []member
	var errs []error
	for _, kind := range kinds {
		members, err := c.members(ctx, s, kind)
		errs = append(errs, err)
		for _, m := range members {
			_, kept := keep[m.id]
			_, keptInDefault := keep[ObjectID{Kind: m.id.Kind, Name: m.id.Name}]
			switch {
			case kept, keptInDefault && (m.id.Namespace == "" || m.id.Namespace == defaultNamespace):
			case kind == "Namespace", kind == "CustomResourceDefinition."+definitionsGroup:
				last = append(last, m)
			default:
				first = append(first, m)
			}
		}
	}
	for _, m := range slices.Concat(first, last) {
		if err := c.delete(ctx, m); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			errs = append(errs, fmt.Errorf("delete %s: %w", m.id, err))
		}
	}
	return errors.Join(errs...)
}

// delete deletes an object unless it was replaced by another one of its name.
func (c sets) delete(ctx context.Context, m member) error {
	background := metav1.DeletePropagationBackground
	body, err := json.Marshal(metav1.DeleteOptions{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"}, PropagationPolicy: &background, Preconditions: &metav1.Preconditions{UID: &m.uid},
	})
	if err != nil {
		return err
	}
	return c.do(ctx, request{method: http.MethodDelete, path: m.path, contentType: mimeJSON, body: body}, nil)
}

// members returns the objects of a kind (Kind.group) that have the label of the set. A kind that does not exist any more has none.
func (c sets) members(ctx context.Context, s *Set, groupKind string) ([]member, error) {
	kind, group, _ := strings.Cut(groupKind, ".")
	prefix, resource, err := c.resource(ctx, group, kind)
	if err != nil || resource.Name == "" {
		return nil, err
	}
	path := prefix + "/" + resource.Name
	var list metav1.PartialObjectMetadataList
	err = c.do(ctx, request{
		method: http.MethodGet, path: path, accept: mimeMetadataList, query: url.Values{"labelSelector": {setLabelMember + "=" + s.id()}},
	}, &list)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsMethodNotSupported(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("list the objects of addon %s: %w", s.Name, err)
	}
	var found []member
	for _, o := range list.Items {
		at := prefix + "/" + resource.Name
		if resource.Namespaced {
			at = prefix + "/namespaces/" + url.PathEscape(o.Namespace) + "/" + resource.Name
		}
		found = append(found, member{ObjectID{kind, o.Namespace, o.Name}, at + "/" + url.PathEscape(o.Name), o.UID})
	}
	return found, nil
}

// resource finds a kind of a group in the API server's discovery: the prefix of its paths, and its name, which is empty if there is no
// such kind.
func (c sets) resource(ctx context.Context, group, kind string) (string, wireResource, error) {
	prefixes := []string{"/api/v1"}
	if group != "" {
		var versions metav1.APIGroup
		err := c.do(ctx, request{method: http.MethodGet, path: "/apis/" + group}, &versions)
		if err != nil && !apierrors.IsNotFound(err) {
			return "", wireResource{}, fmt.Errorf("find %s in %s: %w", kind, group, err)
		}
		prefixes = nil
		for _, v := range versions.Versions {
			prefixes = append(prefixes, "/apis/"+v.GroupVersion)
		}
	}
	m := newMapper(c.conn)
	for _, prefix := range prefixes {
		r, err := m.discover(ctx, prefix, kind)
		switch {
		case err == nil:
			return prefix, r, nil
		case !errors.Is(err, errUnknownKind):
			return "", wireResource{}, fmt.Errorf("find %s in %s: %w", kind, group, err)
		}
	}
	return "", wireResource{}, nil
}
