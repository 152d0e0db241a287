package copyup

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// On a persistent base, links that this package manages must be distinguished from links that pods and users created,
// because only the former are removed when the host no longer has the entry. The text of a managed link has one of these
// prefixes, which do not change where the link leads.
const (
	managedAbsolute = "/./"
	managedRelative = "././"
)

// managedLink returns the text of a link to an entry of the host on a persistent base.
func managedLink(text string) string {
	if path.IsAbs(text) {
		return "/." + text
	}
	return managedRelative + text
}

// isManaged reports whether an entry of a persistent base is a link that this package created.
func isManaged(e Entry) bool {
	return e.isLink() && (strings.HasPrefix(e.Link, managedAbsolute) || strings.HasPrefix(e.Link, managedRelative))
}

// linker is the part of the planner that plans the symbolic links to the host's entries.
type linker struct{ *planner }

// planLinks plans the links at the top of the persistent directories: it creates missing links, and removes those of an
// earlier start whose target has changed or disappeared. RootlessKit's driver does the same on a fresh tmpfs.
func (p linker) planLinks() error {
	if _, err := p.addRoots(); err != nil {
		return err
	}
	for _, root := range sortedRoots(p.planner) {
		if !p.spec.persistent(root) {
			continue
		}
		if err := p.linkEntries(root, root); err != nil {
			return err
		}
	}
	return nil
}

// source is the directory of the host to whose entries a directory inside has links.
type source struct {
	dir     string // its path; "" if there is none
	link    string // the prefix of a link to one of its entries, followed by the name
	inPlace bool   // it is the original of the same directory
}

// sourceOf returns the source of a copied-up directory, or of a directory that is created in it.
func sourceOf(p *planner, dir string) source {
	if original, ok := p.roots[dir]; ok {
		return source{path.Join(dir, original), original + "/", true}
	}
	m := p.made[dir]
	if m.base == "" {
		return source{}
	}
	at, rest := path.Dir(dir), m.base
	if path.IsAbs(rest) {
		at = ""
	}
	for { // the directories above will be real, but are not yet when the path is read
		after, ok := strings.CutPrefix(rest, "../")
		if !ok {
			break
		}
		at, rest = path.Dir(at), after
	}
	return source{strings.TrimSuffix(at, "/") + "/" + strings.TrimPrefix(rest, "/"), deeper(m.base) + "/", m.inPlace}
}

// hostEntry returns the source of the links in a directory at name. Its base is empty if the host has no such entry.
func (p *planner) hostEntry(name string) (made, error) {
	m := made{fresh: p.made[path.Dir(name)].fresh}
	src := sourceOf(p, path.Dir(name))
	if src.dir == "" {
		return m, nil
	}
	e, err := p.view.Lstat(src.dir + "/" + path.Base(name))
	if isMissing(err) || errors.Is(err, fs.ErrPermission) {
		return m, nil
	}
	if err != nil {
		return made{}, err
	}
	e.Name = path.Base(name)
	m.base = src.linkTo(e)
	m.inPlace = p.inPlace(name, m.base)
	return m, nil
}

// linkTo returns the text of a link to an entry. It copies a link of the host if the copy resolves to the same path.
func (s source) linkTo(e Entry) string {
	if e.isLink() && s.inPlace {
		return e.Link
	}
	return s.link + e.Name
}

// linkEntries plans links in a directory inside to all entries of its source.
func (p linker) linkEntries(root, dir string) error {
	src := sourceOf(p.planner, dir)
	var entries []Entry
	if src.dir != "" {
		var err error
		entries, err = p.view.ReadDir(src.dir)
		if errors.Is(err, fs.ErrPermission) {
			return p.linkKept(root, dir) // the directory cannot be listed, but known names in it may be reachable
		}
		if err != nil && !isMissing(err) { // a source that is not a directory has no entries
			return fmt.Errorf("list %s: %w", src.dir, err)
		}
	}
	return p.link(root, dir, src, entries)
}

// linkKept plans links in a directory inside to those entries of its source that are, or contain, kept paths.
func (p linker) linkKept(root, dir string) error {
	src := sourceOf(p.planner, dir)
	var entries []Entry
	for _, name := range p.keep {
		if src.dir == "" || name == dir || !within(name, dir) {
			continue
		}
		for path.Dir(name) != dir {
			name = path.Dir(name)
		}
		base := path.Base(name)
		if slices.ContainsFunc(entries, func(e Entry) bool { return e.Name == base }) {
			continue
		}
		if e, err := p.view.Lstat(src.dir + "/" + base); err == nil {
			e.Name = base
			entries = append(entries, e)
		}
	}
	return p.link(root, dir, src, entries)
}

// link plans links to entries in a directory, and the removal of other managed links.
func (p linker) link(root, dir string, src source, entries []Entry) error {
	if !p.spec.persistent(root) && !p.made[dir].fresh {
		return nil // the links were created together with the directory
	}
	existing, names, err := p.existing(dir)
	if err != nil {
		return err
	}
	linked := map[string]bool{}
	for _, e := range entries {
		name := path.Join(dir, e.Name)
		if p.wants[name] != nil || dir == root && e.Name == p.roots[root] {
			continue
		}
		linked[e.Name] = true
		p.linkEntry(root, name, src.linkTo(e), existing[e.Name])
	}
	for _, n := range names {
		name := path.Join(dir, n)
		if !linked[n] && p.wants[name] == nil && p.spec.persistent(root) && isManaged(existing[n]) {
			p.emit(Step{Op: OpRemove, Root: root, Path: name})
		}
	}
	return nil
}

// existing returns the current entries of a directory inside.
func (p linker) existing(dir string) (entries map[string]Entry, names []string, err error) {
	if p.made[dir].fresh {
		return nil, nil, nil
	}
	list, err := p.view.ReadDir(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("list %s: %w", dir, err)
	}
	entries = make(map[string]Entry, len(list))
	for _, e := range list {
		entries[e.Name] = e
		names = append(names, e.Name)
	}
	return entries, names, nil
}

func (p linker) linkEntry(root, name, text string, existing Entry) {
	persistent := p.spec.persistent(root)
	if persistent {
		text = managedLink(text)
	}
	switch {
	case existing.Name == "":
	case existing.isLink() && existing.Link == text:
		return
	case persistent && isManaged(existing):
		p.emit(Step{Op: OpRemove, Root: root, Path: name})
	default:
		if persistent {
			p.hidden = append(p.hidden, name)
		}
		return
	}
	p.emit(Step{Op: OpLink, Root: root, Path: name, Link: text})
}

func sortedRoots(p *planner) []string {
	roots := make([]string, 0, len(p.roots))
	for root := range p.roots {
		roots = append(roots, root)
	}
	slices.Sort(roots)
	return roots
}
