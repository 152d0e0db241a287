package copyup

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// On a persistent base the links to the host's entries must be distinguished from those that pods and users made, because
// only the former are removed when the host no longer has the entry. Their texts begin with one of these, which change
// nothing about where a link leads.
const (
	ourAbsolute = "/./"
	ourRelative = "././"
)

// ourLink returns the text of a link to an entry of the host on a persistent base.
func ourLink(text string) string {
	if path.IsAbs(text) {
		return "/." + text
	}
	return ourRelative + text
}

// isOurs reports whether an entry of a persistent base is a link that this package made.
func isOurs(e Entry) bool {
	return e.isLink() && (strings.HasPrefix(e.Link, ourAbsolute) || strings.HasPrefix(e.Link, ourRelative))
}

// planLinks plans the links at the top of the persistent directories: missing ones are made, and those of an earlier start
// that lead elsewhere now, or to nothing, are removed. It does what RootlessKit's driver does on a fresh tmpfs.
func (p *planner) planLinks() error {
	if _, err := p.addRoots(); err != nil {
		return err
	}
	for _, root := range p.sortedRoots() {
		if !p.spec.persistent(root) {
			continue
		}
		if err := p.linkEntries(root, root); err != nil {
			return err
		}
	}
	return nil
}

// source is the directory of the host whose entries are linked in a directory inside.
type source struct {
	dir     string // a path to it; "" when there is none
	link    string // what a link to one of its entries has in front of the name
	inPlace bool   // it is the original of this very directory
}

// sourceOf returns the source of a copied-up directory, or of one that is made in it.
func (p *planner) sourceOf(dir string) source {
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
	for { // the directories above are real in the end, but not yet when the path is looked at
		after, ok := strings.CutPrefix(rest, "../")
		if !ok {
			break
		}
		at, rest = path.Dir(at), after
	}
	return source{strings.TrimSuffix(at, "/") + "/" + strings.TrimPrefix(rest, "/"), deeper(m.base) + "/", m.inPlace}
}

// hostEntry returns from where the content of a directory at name would be linked; nothing when the host has no such entry.
func (p *planner) hostEntry(name string) (made, error) {
	m := made{fresh: p.made[path.Dir(name)].fresh}
	src := p.sourceOf(path.Dir(name))
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

// linkTo returns the text of a link to an entry. A link of the host is made again as it was where it resolves as it did.
func (s source) linkTo(e Entry) string {
	if e.isLink() && s.inPlace {
		return e.Link
	}
	return s.link + e.Name
}

// linkEntries makes the links of a directory inside those to all entries of its source.
func (p *planner) linkEntries(root, dir string) error {
	src := p.sourceOf(dir)
	var entries []Entry
	if src.dir != "" {
		var err error
		entries, err = p.view.ReadDir(src.dir)
		if errors.Is(err, fs.ErrPermission) {
			return p.linkKept(root, dir) // cannot be listed, but names in it that are known may lead on
		}
		if err != nil && !isMissing(err) { // not a directory: nothing is lost
			return fmt.Errorf("list %s: %w", src.dir, err)
		}
	}
	return p.link(root, dir, src, entries)
}

// linkKept makes the links of a directory inside those to the entries of its source through which kept paths lead.
func (p *planner) linkKept(root, dir string) error {
	src := p.sourceOf(dir)
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

// link plans the links to entries in a directory, and the end of others.
func (p *planner) link(root, dir string, src source, entries []Entry) error {
	if !p.spec.persistent(root) && !p.made[dir].fresh {
		return nil // made by this plan's first execution, with its links
	}
	standing, names, err := p.standing(dir)
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
		p.linkEntry(root, name, src.linkTo(e), standing[e.Name])
	}
	for _, n := range names {
		name := path.Join(dir, n)
		if !linked[n] && p.wants[name] == nil && p.spec.persistent(root) && isOurs(standing[n]) {
			p.emit(Step{Op: OpRemove, Root: root, Path: name})
		}
	}
	return nil
}

// standing lists what is in a directory inside already.
func (p *planner) standing(dir string) (entries map[string]Entry, names []string, err error) {
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

func (p *planner) linkEntry(root, name, text string, stands Entry) {
	persistent := p.spec.persistent(root)
	if persistent {
		text = ourLink(text)
	}
	switch {
	case stands.Name == "":
	case stands.isLink() && stands.Link == text:
		return
	case persistent && isOurs(stands):
		p.emit(Step{Op: OpRemove, Root: root, Path: name})
	default:
		if persistent {
			p.hidden = append(p.hidden, name)
		}
		return
	}
	p.emit(Step{Op: OpLink, Root: root, Path: name, Link: text})
}

func (p *planner) sortedRoots() []string {
	roots := make([]string, 0, len(p.roots))
	for root := range p.roots {
		roots = append(roots, root)
	}
	slices.Sort(roots)
	return roots
}
