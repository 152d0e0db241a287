package copyup

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// maxLinks is the maximum number of links to follow in one path, the same as the kernel's (path_resolution(7)).
const maxLinks = 40

// canonical follows the host's links in the parents of name as long as they lead into a copied-up directory (such as
// /var/run to /run). It does not follow a link that leads elsewhere, because a real directory will replace it.
func (p *planner) canonical(name string) (string, error) {
	for range maxLinks {
		next := p.followOnce(name)
		if next == name {
			return name, nil
		}
		name = next
	}
	return "", syscall.ELOOP
}

func (p *planner) followOnce(name string) string {
	v := hostView{planner: p}
	for i := 1; i < len(name); i++ {
		if name[i] != '/' {
			continue
		}
		dir := name[:i]
		e, err := v.lstat(dir)
		if err != nil {
			return name
		}
		as, replaced := p.realDirs[dir]
		if replaced && as != kindParent {
			return name
		}
		if replaced || !e.isLink() || p.inPlace(dir, e.Link) {
			continue
		}
		if dest := resolve(path.Dir(dir), e.Link); p.rootOf(dest) != "" {
			return path.Join(dest, name[i:])
		}
	}
	return name
}

// hostView returns the parents of one path, from the top. It returns real directories as they are, and links as they are on
// the host, because a link on a persistent base may be stale or created by a pod.
type hostView struct {
	*planner
	linked   bool // a directory above is a link that leads to the host's entry
	original bool // a directory above will be replaced, so read the original of the copied-up directory instead
}

func (v *hostView) lstat(dir string) (Entry, error) {
	root := v.rootOf(dir)
	if root == "" || root == dir || v.linked || !v.spec.persistent(root) {
		return v.view.Lstat(dir)
	}
	host := path.Join(root, v.roots[root]) + dir[len(root):]
	if v.original {
		return v.view.Lstat(host)
	}
	e, err := v.view.Lstat(dir)
	if err != nil && !isMissing(err) || err == nil && !e.isLink() {
		return e, err
	}
	has, hostErr := v.view.Lstat(host)
	text := path.Join(strings.Repeat("../", strings.Count(dir[len(root):], "/")-1), v.roots[root]) + dir[len(root):]
	if hostErr == nil && has.isLink() {
		text = has.Link
	}
	if v.linked = hostErr == nil && err == nil && e.Link == managedLink(text); v.linked {
		return e, nil
	}
	v.original = true
	return has, hostErr
}

// inPlace reports whether a link at name with the text link leads to the original of name.
func (p *planner) inPlace(name, link string) bool {
	root := p.rootOf(name)
	return root != "" && resolve(path.Dir(name), link) == path.Join(root, p.roots[root], name[len(root):])
}

func (p *planner) addKeeps() error {
	names := slices.Clone(p.spec.Keep)
	for _, b := range p.spec.Binds {
		names = append(names, b.Source)
	}
	var errs []error
	for _, name := range names {
		if err := p.addKeep(name); err != nil {
			errs = append(errs, fmt.Errorf("keep %q: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func (p *planner) addKeep(name string) error {
	if err := checkPath(name); err != nil {
		return err
	}
	name, err := p.canonical(path.Clean(name))
	if err != nil || p.rootOf(name) == "" {
		return err
	}
	for _, w := range p.wants {
		if w.kind == kindBind && within(name, w.path) {
			return fmt.Errorf("would be hidden by the bind over %s", w.path)
		}
	}
	if w := p.wants[name]; w != nil && w.kind == kindEmpty {
		w.kind = kindParent // real and writable, with all entries of the host
	}
	p.keep = append(p.keep, name)
	return nil
}

// checkKept returns an error if an entry that was created inside hides a kept path.
func (p *planner) checkKept() error {
	var errs []error
	reported := map[string]bool{}
	for _, name := range p.keep {
		if err := p.checkParents(name); err != nil && !reported[err.Error()] { // several may have the same parent
			reported[err.Error()] = true
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (p *planner) checkParents(name string) error {
	root := p.rootOf(name)
	for i := len(root) + 1; i <= len(name); i++ {
		if i < len(name) && name[i] != '/' {
			continue
		}
		dir := name[:i]
		e, err := p.view.Lstat(dir)
		if isMissing(err) {
			return nil
		}
		if err == nil && p.wants[dir] != nil && e.Mode.IsDir() {
			continue
		}
		if err == nil && madeInside(p, dir, e) && p.wants[dir] == nil {
			err = conflict(p, dir)
		}
		return err // everything below belongs to the host
	}
	return nil
}

// madeInside reports whether an entry of a real directory was created by a pod or a user inside.
func madeInside(p *planner, name string, e Entry) bool {
	return e.Name != "" && p.spec.persistent(p.rootOf(name)) && !isManaged(e)
}

// conflict returns the error for an entry created inside that has the name of a path that the node needs.
func conflict(p *planner, name string) error {
	stored := path.Join(p.spec.Persist, name)
	err := fmt.Errorf("%s was created inside the node and conflicts with a path that the node needs", name)
	return errdefs.WithHint(errdefs.Class(errdefs.ErrPreflight, err), "mv "+stored+" "+stored+".saved")
}

// within reports whether name is dir or below it.
func within(name, dir string) bool {
	return name == dir || strings.HasPrefix(name, dir+"/")
}

// resolve returns the path to which a link in dir with the text link leads.
func resolve(dir, link string) string {
	if path.IsAbs(link) {
		return path.Clean(link)
	}
	return path.Join(dir, link)
}

// deeper returns the text of a link one directory further down that leads to the same path as link.
func deeper(link string) string {
	if path.IsAbs(link) {
		return link
	}
	return "../" + link // not cleaned, because a ".." after a link must not be removed
}

// isMissing reports whether err means that a path does not exist or one of its parents is not a directory.
func isMissing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP)
}
