package kubeapi

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// A set of objects that are applied and pruned together follows the conventions of ApplySets (KEP-3659), so that other tools recognize
// it: a parent object has the id of the set, and every member has the id as a label.
const (
	setLabelID     = "applyset.kubernetes.io/id"
	setLabelMember = "applyset.kubernetes.io/part-of"
	setTooling     = "applyset.kubernetes.io/tooling"
	setKinds       = "applyset.kubernetes.io/contains-group-kinds"
	setNamespaces  = "applyset.kubernetes.io/additional-namespaces"
	setToolingName = "rootlessnode/v1"

	// setNamespace is the namespace of the parents, which are ConfigMaps.
	setNamespace = "kube-system"
	parentsPath  = namespacesPath + "/" + setNamespace + "/configmaps"
	// setLabelName is a label of the parents with the name of the set, and setSource an annotation with its source.
	setLabelName = "rootlessnode.dev/addon"
	setSource    = "rootlessnode.dev/source"

	// SetManager is the field manager of sets. It differs from FieldManager, so that fields of the node's own objects have one owner.
	SetManager = "rootlessnode-addons"
)

// Set is a set of objects from files.
type Set struct {
	// Name identifies the set in the cluster. It must be a valid label value and the end of a valid object name.
	Name string
	// Source is the path of its files, for people.
	Source string
	docs   []document
}

// AddFile parses a YAML stream or a JSON object and adds its objects to the set. The errors of invalid documents have the path and the
// line.
func (s *Set) AddFile(path string, data []byte) error {
	docs, err := parseFile(path, data)
	s.docs = append(s.docs, docs...)
	return err
}

// Objects returns the objects of the set and the place of each: the file and the line.
func (s *Set) Objects() map[ObjectID]string {
	places := map[ObjectID]string{}
	for _, d := range s.docs {
		places[d.id()] = d.place
	}
	return places
}

func (s *Set) parent() string { return "rootlessnode-addon-" + s.Name }

// id returns the id of the set, which depends on its parent.
func (s *Set) id() string {
	sum := sha256.Sum256([]byte(strings.Join([]string{s.parent(), setNamespace, "ConfigMap", ""}, ".")))
	return "applyset-" + base64.RawURLEncoding.EncodeToString(sum[:]) + "-v1"
}

// parentObject is the parent of a set.
type parentObject struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name        string            `json:"name"`
		Namespace   string            `json:"namespace"`
		Labels      map[string]string `json:"labels"`
		Annotations map[string]string `json:"annotations"`
	} `json:"metadata"`
}

// split returns the entries of an annotation that is a list.
func (p *parentObject) split(annotation string) []string {
	return strings.FieldsFunc(p.Metadata.Annotations[annotation], func(r rune) bool { return r == ',' })
}

// ApplySet applies the objects of a set by server-side apply with force: first namespaces and definitions of custom resources, which it
// waits for, and then the others in their order. All objects are tried. If all were applied and prune is set, it then deletes the objects
// that the set had before and that are not in it any more. It returns the objects that were applied.
func (c sets) ApplySet(ctx context.Context, s *Set, prune bool) ([]ObjectState, error) {
	before, err := c.readParent(ctx, s)
	if err != nil {
		return nil, err
	}
	now := kindsOf(s.docs)
	// The parent has the former kinds until their objects are deleted, also if this is interrupted.
	if err := c.writeParent(ctx, s, union(now, before.split(setKinds)), union(namespacesOf(s.docs), before.split(setNamespaces))); err != nil {
		return nil, err
	}
	docs, err := s.members()
	if err != nil {
		return nil, err
	}
	applied, err := c.applyInOrder(ctx, docs)
	if err != nil || !prune {
		return applied, err
	}
	if err := c.prune(ctx, s, union(now, before.split(setKinds))); err != nil {
		return applied, err
	}
	return applied, c.writeParent(ctx, s, now, namespacesOf(s.docs))
}

// applyInOrder applies the documents that others need first.
func (c sets) applyInOrder(ctx context.Context, docs []document) ([]ObjectState, error) {
	var first, rest []document
	for _, d := range docs {
		if d.isNamespace() || d.isDefinition() {
			first = append(first, d)
		} else {
			rest = append(rest, d)
		}
	}
	a := applier{c.conn, SetManager}
	applied, err := a.all(ctx, first)
	err = errors.Join(err, c.waitDefinitions(ctx, first))
	more, restErr := a.all(ctx, rest)
	return append(applied, more...), errors.Join(err, restErr)
}

// WatchSet calls fn with the state of every object of the set, and again after each change, until ctx ends. An object that is not marked
// as a member of the set any more is reported as missing.
func (c sets) WatchSet(ctx context.Context, s *Set, fn func(ObjectState)) error {
	return c.watchDocuments(ctx, s.docs, setLabelMember+"="+s.id(), fn)
}

// StoredSet is a set in the cluster.
type StoredSet struct{ Name, Source string }

// StoredSets returns the sets that were applied to the cluster.
func (c sets) StoredSets(ctx context.Context) ([]StoredSet, error) {
	var list struct {
		Items []parentObject `json:"items"`
	}
	err := c.do(ctx, request{method: http.MethodGet, path: parentsPath, query: url.Values{"labelSelector": {setLabelName}}}, &list)
	if err != nil {
		return nil, fmt.Errorf("list addons in the cluster: %w", err)
	}
	var found []StoredSet
	for _, p := range list.Items {
		found = append(found, StoredSet{p.Metadata.Labels[setLabelName], p.Metadata.Annotations[setSource]})
	}
	return found, nil
}

// RemoveSet deletes all objects of a set, and then its parent.
func (c sets) RemoveSet(ctx context.Context, name string) error {
	s := &Set{Name: name}
	p, err := c.readParent(ctx, s)
	if err != nil {
		return err
	}
	if err := c.prune(ctx, s, p.split(setKinds)); err != nil {
		return err
	}
	err = c.do(ctx, request{method: http.MethodDelete, path: parentsPath + "/" + s.parent()}, nil)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete addon %s: %w", name, err)
	}
	return nil
}

// readParent returns the parent of a set, empty if it does not exist.
func (c sets) readParent(ctx context.Context, s *Set) (*parentObject, error) {
	p, err := read[parentObject](ctx, c.conn, parentsPath+"/"+s.parent())
	if err != nil {
		return nil, fmt.Errorf("read addon %s: %w", s.Name, err)
	}
	if p == nil {
		p = &parentObject{}
	}
	return p, nil
}

func (c sets) writeParent(ctx context.Context, s *Set, kinds, namespaces []string) error {
	p := parentObject{APIVersion: "v1", Kind: "ConfigMap"}
	p.Metadata.Name, p.Metadata.Namespace = s.parent(), setNamespace
	p.Metadata.Labels = map[string]string{setLabelID: s.id(), setLabelName: s.Name}
	p.Metadata.Annotations = map[string]string{
		setTooling: setToolingName, setKinds: strings.Join(kinds, ","), setNamespaces: strings.Join(namespaces, ","), setSource: s.Source,
	}
	body, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("record addon %s: %w", s.Name, err)
	}
	d := document{APIVersion: p.APIVersion, Kind: p.Kind, json: body}
	d.Metadata.Name, d.Metadata.Namespace = p.Metadata.Name, p.Metadata.Namespace
	if _, err := (applier{c.conn, SetManager}).one(ctx, newMapper(c.conn), d); err != nil {
		return fmt.Errorf("record addon %s: %w", s.Name, err)
	}
	return nil
}

// members returns the documents of the set with the label of its members.
func (s *Set) members() ([]document, error) {
	docs := slices.Clone(s.docs)
	for i, d := range docs {
		var object map[string]any
		decoder := json.NewDecoder(bytes.NewReader(d.json))
		decoder.UseNumber() // large numbers keep their digits
		if err := decoder.Decode(&object); err != nil {
			return nil, d.fault(err)
		}
		meta, _ := object["metadata"].(map[string]any) // addDocument has found a name in it
		labels, ok := meta["labels"].(map[string]any)
		if !ok {
			labels = map[string]any{}
			meta["labels"] = labels
		}
		labels[setLabelMember] = s.id()
		var err error
		if docs[i].json, err = json.Marshal(object); err != nil {
			return nil, d.fault(err)
		}
	}
	return docs, nil
}

// kindsOf returns the kinds of documents as the convention writes them: Kind.group, or Kind for the core group.
func kindsOf(docs []document) []string {
	kinds := map[string]bool{}
	for _, d := range docs {
		kinds[strings.TrimSuffix(d.Kind+"."+d.group(), ".")] = true
	}
	return slices.Sorted(maps.Keys(kinds))
}

// namespacesOf returns the namespaces of documents other than that of the parent.
func namespacesOf(docs []document) []string {
	namespaces := map[string]bool{}
	for _, d := range docs {
		if ns := d.Metadata.Namespace; ns != "" && ns != setNamespace {
			namespaces[ns] = true
		}
	}
	return slices.Sorted(maps.Keys(namespaces))
}

func union(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.Compact(all)
}
