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

// maxLinks is how many links are followed in one path, as many as the kernel follows (path_resolution(7)).
const maxLinks = 40

// canonical follows the host's own links among the parents of name while they lead into a copied-up directory
// (/var/run to /run). A link that leads elsewhere is left: a real directory will stand in its place.
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
		as, settled := p.settled[dir]
		if settled && as != kindParent {
			return name
		}
		if settled || !e.isLink() || p.inPlace(dir, e.Link) {
			continue
		}
		if dest := resolve(path.Dir(dir), e.Link); p.rootOf(dest) != "" {
			return path.Join(dest, name[i:])
		}
	}
	return name
}

// hostView looks at the directories on the way to one path, from the top, and shows real ones as they are and links as the host
// has them: on a persistent base, links may be those of pods, or stale.
type hostView struct {
	*planner
	linked   bool // a directory above is a link that leads to the host's entry
	original bool // one is not as it will be: the original of the copied-up directory shows what the host has
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
	if v.linked = hostErr == nil && err == nil && e.Link == ourLink(text); v.linked {
		return e, nil
	}
	v.original = true
	return has, hostErr
}

// inPlace tells whether a link with that text, standing at name, leads to the original of name.
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
		w.kind = kindParent // real and writable, with all that the host has in it
	}
	p.keep = append(p.keep, name)
	return nil
}

// checkKept refuses kept paths whose way is hidden by something that was made inside.
func (p *planner) checkKept() error {
	var errs []error
	told := map[string]bool{}
	for _, name := range p.keep {
		if err := p.checkWay(name); err != nil && !told[err.Error()] { // several may have one way
			told[err.Error()] = true
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (p *planner) checkWay(name string) error {
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
		if err == nil && p.madeInside(dir, e) && p.wants[dir] == nil {
			err = p.inTheWay(dir)
		}
		return err // below it everything is the host's
	}
	return nil
}

// madeInside reports whether an entry of a directory that is, or becomes, real was made by a pod or a user inside.
func (p *planner) madeInside(name string, e Entry) bool {
	return e.Name != "" && p.spec.persistent(p.rootOf(name)) && !isOurs(e)
}

func (p *planner) inTheWay(name string) error {
	stored := path.Join(p.spec.Persist, name)
	err := fmt.Errorf("%s was made inside the node and is in the way", name)
	return errdefs.WithHint(errdefs.Class(errdefs.ErrPreflight, err), "mv "+stored+" "+stored+".saved")
}

// within tells whether name is dir or lies below it.
func within(name, dir string) bool {
	return name == dir || strings.HasPrefix(name, dir+"/")
}

// resolve returns the path to which a link with that text leads from dir.
func resolve(dir, link string) string {
	if path.IsAbs(link) {
		return path.Clean(link)
	}
	return path.Join(dir, link)
}

// deeper returns the text that a link must have one directory further down to lead where link leads.
func deeper(link string) string {
	if path.IsAbs(link) {
		return link
	}
	return "../" + link // not cleaned: a ".." after a link must stay where it is
}

// isMissing tells whether a path leads to nothing, or to no directory.
func isMissing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ELOOP)
}
