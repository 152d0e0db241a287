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

// kind is what must stand at a path in the end.
type kind int

const (
	kindParent kind = iota // a real directory whose former entries are linked back
	kindEmpty              // a real directory, empty but for what is kept
	kindBind               // a real directory with something bound over it
	kindGone               // no link; a file made anew may be there
)

// want is one path that the plan has to do something about.
type want struct {
	path  string
	root  string
	kind  kind
	mode  os.FileMode
	bind  int
	bound bool // lies below a kindBind
}

// made is what became of a directory in this plan.
type made struct {
	fresh   bool   // made by this plan, so nothing is in it yet
	base    string // the link that stood, or would have stood, in its place; "" when nothing is to be linked back
	inPlace bool   // base leads to the original of this very path
}

type planner struct {
	spec  Spec
	view  View
	roots map[string]string // copied-up directory -> name of its original below it
	wants map[string]*want
	// settled are the names that will be real directories: a link there, or in one that will be empty, is not followed.
	settled map[string]kind
	keep    []string
	made    map[string]made
	steps   []Step
	// hidden are entries of the host that cannot be linked, because something made inside has their name.
	hidden []string
}

// Plan works out what has to be done, in order, to bring the copied-up directories seen through view to what s asks.
// Planned again after it was carried out, the same Spec gives no step. Faults of s are of the class errdefs.ErrConfig,
// and all of them are reported together.
//
// The links at the top of copied-up directories stand already: RootlessKit has made them, or planLinks.
//
// It is pure: it changes nothing and reads nothing but view. Runs in: either.
func Plan(s Spec, view View) ([]Step, error) {
	p := newPlanner(s, view)
	if err := p.plan(); err != nil {
		return nil, err
	}
	return p.steps, nil
}

func newPlanner(s Spec, view View) *planner {
	return &planner{
		spec: s, view: view,
		roots: map[string]string{}, wants: map[string]*want{}, settled: map[string]kind{}, made: map[string]made{},
	}
}

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

// addRoots finds the outermost copied-up directories and returns those that lie below another.
func (p *planner) addRoots() (nested []string, err error) {
	dirs := make([]string, 0, len(p.spec.CopyUp))
	for _, d := range p.spec.CopyUp {
		if err := checkPath(d); err != nil {
			return nil, errdefs.Class(errdefs.ErrConfig, fmt.Errorf("copy-up directory %q: %w", d, err))
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

// request is a want as the Spec puts it.
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

// canonicalNames gives the requests their canonical names. A link that will be gone, because it or a directory
// above it is requested too, is not followed; so the names depend on one another, and are settled in rounds.
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
		clear(p.settled)
		for i, r := range list {
			if r.kind != kindGone && p.rootOf(names[i]) != "" {
				p.settled[names[i]] = r.kind
			}
		}
	}
	return nil, errors.New("directories to be made replace links that lead to one another")
}

// staleLinks are files that programs inside must make anew: the lock of iptables belongs to the host's root, and
// iptables ends with status 4 when it cannot open it.
func staleLinks() []string { return []string{"/run/xtables.lock"} }

// add puts w and the parents that have to be real for it on the list. The name is canonical.
func (p *planner) add(name string, w want) error {
	root := p.rootOf(name)
	switch {
	case root == "" && w.kind != kindBind:
		return nil // not copied up, so not ours to change
	case root == "":
		return errdefs.WithHint(errors.New("lies below no copied-up directory"),
			"copy up a directory above it; one that the host does not have must be made there first, as root")
	case root == name && w.kind == kindParent:
		return nil
	case root == name:
		return errors.New("is a copied-up directory itself")
	case within(name, path.Join(root, p.roots[root])):
		return fmt.Errorf("lies in the original of %s", root)
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

// sorted returns the wanted paths with each directory before what is in it.
func (p *planner) sorted() []*want {
	list := make([]*want, 0, len(p.wants))
	for _, w := range p.wants {
		list = append(list, w)
	}
	slices.SortFunc(list, func(a, b *want) int { return strings.Compare(a.path, b.path) })
	return list
}
