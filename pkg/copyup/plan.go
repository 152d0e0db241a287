package copyup

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// kind is the required type of a path.
type kind int

const (
	kindParent kind = iota // a real directory with links to its former entries
	kindEmpty              // a real directory that contains only kept paths
	kindBind               // a real directory with a bind mount over it
	kindGone               // no link; a new file may be there
)

// want is one path that the plan has to change.
type want struct {
	path  string
	root  string
	kind  kind
	mode  os.FileMode
	bind  int
	bound bool // is below a kindBind
}

// made is the state of a directory in this plan.
type made struct {
	fresh   bool   // created by this plan, so it is still empty
	base    string // the link that was, or would have been, in its place; "" if there is nothing to link to
	inPlace bool   // base leads to the original of the same path
}

type planner struct {
	spec  Spec
	view  View
	roots map[string]string // copied-up directory -> name of its original below it
	wants map[string]*want
	// realDirs are the names that will be real directories: a link there, or in one that will be empty, is not followed.
	realDirs map[string]kind
	keep     []string
	made     map[string]made
	steps    []Step
	// hidden are entries of the host that cannot be linked, because an entry created inside has the same name.
	hidden []string
}

// newPlanner returns a planner of the steps that change the copied-up directories in view to match s. After the steps were applied,
// planning the same Spec again returns no steps. The links at the top of copied-up directories must exist already: RootlessKit or planLinks
// creates them.
func newPlanner(s Spec, view View) *planner {
	return &planner{
		spec: s, view: view,
		roots: map[string]string{}, wants: map[string]*want{}, realDirs: map[string]kind{}, made: map[string]made{},
	}
}

// plan computes the steps, in order. Errors in the spec have class errdefs.ErrConfig, and all of them are joined. It is pure: it changes
// nothing and reads only the view.
func (p *planner) plan() error {
	nested, err := p.addRoots()
	if err != nil {
		return err
	}
	if err := errors.Join(p.addWants(nested), p.addKeeps()); err != nil {
		return errdefs.Class(errdefs.ErrConfig, err)
	}
	if err := p.checkKept(); err != nil {
		return err
	}
	p.markBound()
	if err := p.planRoots(); err != nil {
		return err
	}
	for _, w := range p.sorted() {
		if err := p.planWant(w); err != nil {
			return err
		}
	}
	return nil
}

// addRoots records the outermost copied-up directories and returns those that are below another one.
func (p *planner) addRoots() (nested []string, err error) {
	dirs := make([]string, 0, len(p.spec.CopyUp))
	for _, d := range p.spec.CopyUp {
		if err := checkPath(d); err != nil {
			return nil, errdefs.Config("copy-up directory %q: %w", d, err)
		}
		dirs = append(dirs, path.Clean(d))
	}
	slices.Sort(dirs)
	for _, d := range slices.Compact(dirs) {
		if p.rootOf(d) != "" {
			nested = append(nested, d)
			continue
		}
		orig, err := p.view.Original(d)
		if err != nil {
			return nil, fmt.Errorf("find the original of %s: %w", d, err)
		}
		p.roots[d] = orig
	}
	return nested, nil
}

func checkPath(name string) error {
	switch {
	case !path.IsAbs(name):
		return errors.New("path is not absolute")
	case path.Clean(name) == "/":
		return errors.New("path is the root directory")
	case strings.ContainsRune(name, 0):
		return errors.New("path contains a NUL byte")
	}
	return nil
}

// rootOf returns the copied-up directory at or above name, or "".
func (p *planner) rootOf(name string) string {
	for ; name != "/"; name = path.Dir(name) {
		if _, ok := p.roots[name]; ok {
			return name
		}
	}
	return ""
}

// request is a want with its name in the Spec.
type request struct {
	what string
	name string
	want
}

func (p *planner) requests(nested []string) (list []request) {
	for i, b := range p.spec.Binds {
		list = append(list, request{"bind target", b.Target, want{kind: kindBind, mode: dirMode, bind: i}})
	}
	for _, d := range p.spec.Real {
		mode := d.Mode
		if mode == 0 {
			mode = dirMode
		}
		list = append(list, request{"directory", d.Path, want{kind: kindEmpty, mode: mode}})
	}
	for _, d := range p.spec.Merged {
		list = append(list, request{"merged directory", d, want{kind: kindParent, mode: dirMode}})
	}
	for _, d := range nested {
		list = append(list, request{"copy-up directory", d, want{kind: kindParent, mode: dirMode}})
	}
	for _, name := range staleLinks() {
		list = append(list, request{"stale link", name, want{kind: kindGone}})
	}
	return list
}

func (p *planner) addWants(nested []string) error {
	list := p.requests(nested)
	var errs []error
	fault := func(r request, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("%s %q: %w", r.what, r.name, err))
		}
	}
	for _, r := range list {
		fault(r, checkPath(r.name))
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	names, err := p.canonicalNames(list)
	if err != nil {
		return err
	}
	for i, r := range list {
		fault(r, p.add(names[i], r.want))
	}
	return errors.Join(errs...)
}

// canonicalNames returns the canonical names of the requests. A link that will be replaced, because it or a directory above
// it is requested too, is not followed. The names therefore depend on each other and are computed iteratively.
func (p *planner) canonicalNames(list []request) ([]string, error) {
	names := make([]string, len(list))
	for range len(list) + 1 {
		before := slices.Clone(names)
		for i, r := range list {
			name, err := p.canonical(path.Clean(r.name))
			if err != nil {
				return nil, fmt.Errorf("%s %q: %w", r.what, r.name, err)
			}
			names[i] = name
		}
		if slices.Equal(before, names) {
			return names, nil
		}
		clear(p.realDirs)
		for i, r := range list {
			if r.kind != kindGone && p.rootOf(names[i]) != "" {
				p.realDirs[names[i]] = r.kind
			}
		}
	}
	return nil, errors.New("the requested directories replace links that form a cycle")
}

// staleLinks returns files that programs inside must create themselves: the lock of iptables belongs to the host's root, and
// iptables exits with status 4 if it cannot open it.
func staleLinks() []string { return []string{"/run/xtables.lock"} }

// add adds w and the parents that have to be real directories for it. name is canonical.
func (p *planner) add(name string, w want) error {
	root := p.rootOf(name)
	switch {
	case root == "" && w.kind != kindBind:
		return nil // not copied up, so it must not be changed
	case root == "":
		return errdefs.Errorf("is not below a copied-up directory").
			Hint("copy up a directory above it; if the host does not have that directory, first create it as root")
	case root == name && w.kind == kindParent:
		return nil
	case root == name:
		return errors.New("is a copied-up directory itself")
	case within(name, path.Join(root, p.roots[root])):
		return fmt.Errorf("is in the original of %s", root)
	}
	w.path, w.root = name, root
	if old := p.wants[name]; old == nil || old.kind == kindParent && w.kind != kindGone {
		p.wants[name] = &w
	} else if old.kind == kindBind && w.kind == kindBind {
		return fmt.Errorf("is also the target of bind %d", old.bind)
	}
	for dir := path.Dir(name); dir != root; dir = path.Dir(dir) {
		if old := p.wants[dir]; old == nil || old.kind == kindGone {
			p.wants[dir] = &want{path: dir, root: root, kind: kindParent, mode: dirMode}
		}
	}
	return nil
}

func (p *planner) markBound() {
	for _, w := range p.wants {
		for dir := path.Dir(w.path); dir != w.root; dir = path.Dir(dir) {
			if above := p.wants[dir]; above != nil && above.kind == kindBind {
				w.bound = true
			}
		}
	}
}

// sorted returns the wants, with each directory before its entries.
func (p *planner) sorted() []*want {
	list := make([]*want, 0, len(p.wants))
	for _, w := range p.wants {
		list = append(list, w)
	}
	slices.SortFunc(list, func(a, b *want) int { return strings.Compare(a.path, b.path) })
	return list
}
