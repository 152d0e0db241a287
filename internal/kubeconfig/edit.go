package kubeconfig

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// Fields of a kubeconfig.
const (
	clusters       = "clusters"
	users          = "users"
	contexts       = "contexts"
	currentContext = "current-context"
	caFileField    = "certificate-authority"
	certFileField  = "client-certificate"
)

// lists are the lists of entries, each with the field of an entry that has its content.
var lists = []struct{ name, content string }{{clusters, "cluster"}, {contexts, "context"}, {users, "user"}}

// skeleton is a kubeconfig without entries.
const skeleton = "apiVersion: v1\nkind: Config\n"

// edit changes the text of a kubeconfig.
type edit struct {
	text []byte
	// forms has the text between the colon of a field and the end of its line, before an entry was added to the empty field. It is nil
	// for a field that did not exist.
	forms map[string]*string
	// original is set if the text had only comments.
	original *string
}

// merge adds or updates the entries of e.
func (x *edit) merge(e Entry, setCurrent bool) error {
	d, err := parse(x.text)
	if err != nil {
		return err
	}
	was := x.text
	if d.root == nil {
		text := string(x.text)
		x.original, x.text = &text, []byte(withNewline(text)+skeleton)
		was = x.text
	}
	old, err := decode(was)
	if err != nil {
		return err
	}
	if err := x.put(e, old, setCurrent && old.current() == ""); err != nil {
		return unsupported(err)
	}
	undone := &edit{text: x.text, forms: maps.Clone(x.forms)} // the entries must be removable
	return unsupported(cmp.Or(x.check(was, e.Name, 1), undone.unmerge(e.Name)))
}

// put adds the entries of e, or updates those in old.
func (x *edit) put(e Entry, old content, setCurrent bool) error {
	for _, list := range lists {
		content := e.content(list.name)
		had, _ := old.entry(list.name, e.Name)[list.content].(map[string]any)
		for key, value := range had {
			if _, set := content[key]; !set && kept(list.name, key) {
				content[key] = value
			}
		}
		if reflect.DeepEqual(had, content) {
			continue
		}
		item := map[string]any{"name": e.Name, list.content: content}
		if err := errors.Join(x.removeItem(list.name, e.Name), x.addItem(list.name, item)); err != nil {
			return err
		}
	}
	if setCurrent {
		return x.setCurrent(e.Name)
	}
	return nil
}

// errUnsupported is the class of errors for files that cannot be edited.
var errUnsupported = errors.New("the format of the file is not supported")

// unsupported adds errUnsupported to err.
func unsupported(err error) error {
	if err == nil || errors.Is(err, errUnsupported) {
		return err
	}
	return fmt.Errorf("%w: %w", errUnsupported, err)
}

// kept reports whether a field that the user has added to a node's entry is kept: all but those that select other credentials or
// another authority.
func kept(list, field string) bool {
	return list == contexts || list == clusters && field != "certificate-authority-data" && field != "insecure-skip-tls-verify"
}

// content returns what the entry of e in a list contains.
func (e Entry) content(list string) map[string]any {
	switch list {
	case clusters:
		return map[string]any{caFileField: e.CAFile, "server": e.Server}
	case users:
		return map[string]any{certFileField: e.CertFile, "client-key": e.KeyFile}
	}
	return map[string]any{"cluster": e.Name, "user": e.Name}
}

// unmerge removes the entries called name.
func (x *edit) unmerge(name string) error {
	was := x.text
	if _, err := decode(was); err != nil {
		return err
	}
	for _, list := range lists {
		for range x.count(list.name, name) {
			if err := x.removeItem(list.name, name); err != nil {
				return unsupported(err)
			}
		}
	}
	if x.current() == name {
		if err := x.clearCurrent(); err != nil {
			return unsupported(err)
		}
	}
	return unsupported(x.check(was, name, 0))
}

// checkForeign returns an error if the file has entries with the names of e that belong to another cluster.
func (x *edit) checkForeign(e Entry) error {
	all, err := decode(x.text)
	if err != nil {
		return err
	}
	if !x.has(e.Name) {
		return nil
	}
	cluster, _ := all.entry(clusters, e.Name)["cluster"].(map[string]any)
	user, _ := all.entry(users, e.Name)["user"].(map[string]any)
	if user[certFileField] == e.CertFile || cluster[caFileField] == e.CAFile {
		return nil
	}
	return errdefs.Errorf("it has entries called %s of another cluster", e.Name).
		Hint("kubectl config delete-context "+e.Name, "kubectl config delete-cluster "+e.Name, "kubectl config delete-user "+e.Name).
		Do(errdefs.MergeKubeconfig)
}

// certFile returns the path of the client certificate of the user called name, or "".
func (x *edit) certFile(name string) (string, error) {
	all, err := decode(x.text)
	if err != nil {
		return "", err
	}
	user, _ := all.entry(users, name)["user"].(map[string]any)
	path, _ := user[certFileField].(string)
	return path, nil
}

// check returns an error if an edit has changed more than the entries called name, or if each list does not have want of them.
func (x *edit) check(was []byte, name string, want int) error {
	before, err := decode(was)
	if err != nil {
		return err
	}
	after, err := decode(x.text)
	if err == nil && !reflect.DeepEqual(before.without(name), after.without(name)) {
		err = errors.New("other entries would change")
	}
	for _, list := range lists {
		if n := x.count(list.name, name); err == nil && n != want {
			err = fmt.Errorf("%d entries called %s in %s, expected %d", n, name, list.name, want)
		}
	}
	return err
}

func (x *edit) count(list, name string) int {
	all, err := decode(x.text)
	if err != nil {
		return 0
	}
	items, _ := all[list].([]any)
	n := 0
	for _, item := range items {
		if m, ok := item.(map[string]any); ok && m["name"] == name {
			n++
		}
	}
	return n
}

// has reports whether a list has an entry called name.
func (x *edit) has(name string) bool {
	return x.count(clusters, name)+x.count(users, name)+x.count(contexts, name) > 0
}

func (x *edit) current() string {
	all, err := decode(x.text)
	if err != nil {
		return ""
	}
	return all.current()
}

// isEmpty reports whether the file has no entries and no other content.
func (x *edit) isEmpty() bool {
	all, err := decode(x.text)
	if err != nil {
		return false
	}
	left := all.without("")
	for _, field := range []string{"apiVersion", "kind"} {
		delete(left, field)
	}
	if p, ok := left["preferences"].(map[string]any); ok && len(p) == 0 { // kubectl adds it
		delete(left, "preferences")
	}
	return len(left) == 0
}

// withNewline returns text with a newline at its end, unless it is empty.
func withNewline(text string) string {
	if text == "" || strings.HasSuffix(text, "\n") {
		return text
	}
	return text + "\n"
}
