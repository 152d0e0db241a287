package copyup

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"
)

// inode is a file in a model of the file system. A tree of inodes can be at several paths, as with a bind mount.
type inode struct {
	mode     fs.FileMode
	link     string
	children map[string]*inode
	host     bool // belongs to the host: no step may change it
	mounted  bool // is a mount point
}

func newDir(host bool, mode fs.FileMode) *inode {
	return &inode{mode: fs.ModeDir | mode, children: map[string]*inode{}, host: host}
}

// model is a View of a model file system. It applies steps as strictly as the applier.
type model struct{ root *inode }

// hostModel creates the host from lines "/dir/", "/file" and "/link -> text".
func hostModel(lines ...string) *model {
	m := &model{root: newDir(true, 0o755)}
	for _, line := range lines {
		name, link, isLink := strings.Cut(line, " -> ")
		node := &inode{host: true}
		switch {
		case isLink:
			node.mode, node.link = fs.ModeSymlink|0o777, link
		case strings.HasSuffix(name, "/"):
			node = newDir(true, 0o755)
		default:
			node.mode = 0o644
		}
		m.put(path.Clean(name), node)
	}
	return m
}

func (m *model) put(name string, node *inode) bool {
	at := m.root
	elements := strings.Split(strings.Trim(name, "/"), "/")
	for _, e := range elements[:len(elements)-1] {
		if at.children[e] == nil {
			at.children[e] = newDir(true, 0o755)
		}
		if at = at.children[e]; at.children == nil {
			return false
		}
	}
	last := elements[len(elements)-1]
	if at.children[last] != nil {
		return false
	}
	at.children[last] = node
	return true
}

// copyUp simulates RootlessKit's driver.
func (m *model) copyUp(roots ...string) {
	for _, root := range roots {
		orig := m.lookupPlain(root)
		top := newDir(false, fs.ModeSticky|0o777)
		for name, node := range orig.children {
			link := &inode{mode: fs.ModeSymlink | 0o777, link: ".ro1/" + name}
			if node.mode&fs.ModeSymlink != 0 {
				link.link = node.link
			}
			top.children[name] = link
		}
		top.children[".ro1"] = orig
		m.lookupPlain(path.Dir(root)).children[path.Base(root)] = top
	}
}

// lookupPlain returns the inode at name without following links, or nil if it does not exist or a parent is a link.
func (m *model) lookupPlain(name string) *inode {
	at := m.root
	for e := range strings.SplitSeq(strings.Trim(name, "/"), "/") {
		if e != "" && at != nil {
			at = at.children[e]
		}
	}
	return at
}

// resolve resolves name as the kernel does and also returns every visited path.
func (m *model) resolve(name string, last bool) (*inode, []string, error) {
	stack, names, visited, hops := []*inode{m.root}, []string{}, []string{}, 0
	rest := strings.Split(name, "/")
	for len(rest) > 0 {
		e := rest[0]
		rest = rest[1:]
		at := stack[len(stack)-1]
		switch {
		case e == "" || e == ".":
			continue
		case at.children == nil:
			return nil, visited, syscall.ENOTDIR
		case e == "..":
			if len(stack) > 1 {
				stack, names = stack[:len(stack)-1], names[:len(names)-1]
			}
			continue
		}
		next := at.children[e]
		visited = append(visited, "/"+strings.Join(append(slices.Clone(names), e), "/"))
		if next == nil {
			return nil, visited, fs.ErrNotExist
		}
		if next.mode&fs.ModeSymlink != 0 && (last || len(rest) > 0) {
			if hops++; hops > maxLinks {
				return nil, visited, syscall.ELOOP
			}
			if path.IsAbs(next.link) {
				stack, names = stack[:1], nil
			}
			rest = append(strings.Split(next.link, "/"), rest...)
			continue
		}
		stack, names = append(stack, next), append(names, e)
	}
	return stack[len(stack)-1], visited, nil
}

func (m *model) Original(root string) (string, error) {
	if n := m.lookupPlain(root); n == nil || n.children[".ro1"] == nil {
		return "", fmt.Errorf("%s is not copied up", root)
	}
	return ".ro1", nil
}

func (m *model) Lstat(name string) (Entry, error) {
	n, _, err := m.resolve(name, false)
	if err != nil {
		return Entry{}, err
	}
	return Entry{Name: path.Base(name), Mode: n.mode, Link: n.link, Mounted: n.mounted}, nil
}

func (m *model) ReadDir(name string) ([]Entry, error) {
	n, _, err := m.resolve(name, true)
	if err != nil {
		return nil, err
	}
	if n.children == nil {
		return nil, syscall.ENOTDIR
	}
	var list []Entry
	for _, name := range slices.Sorted(maps.Keys(n.children)) {
		c := n.children[name]
		list = append(list, Entry{Name: name, Mode: c.mode.Type(), Link: c.link})
	}
	return list, nil
}

// apply applies one step. It returns an error if that would change the host.
func (m *model) apply(s Step, sources []*inode) error {
	at := m.lookupPlain(s.Root)
	if at == nil || at.host {
		return fmt.Errorf("%v: %s is not copied up", s, s.Root)
	}
	rel := strings.Trim(strings.TrimPrefix(s.Path, s.Root), "/")
	if rel == "" {
		at.mode = fs.ModeDir | s.Mode
		return nil
	}
	elements := strings.Split(rel, "/")
	inBind := false
	for _, e := range elements[:len(elements)-1] {
		at = at.children[e]
		if at == nil || at.children == nil {
			return fmt.Errorf("%v: %s is not a real directory", s, e)
		}
		inBind = inBind || at.mounted
		if at.host && (!s.Bound || !inBind) {
			return fmt.Errorf("%v: %s belongs to the host", s, e)
		}
	}
	if inBind != s.Bound {
		return fmt.Errorf("%v: bound is %v", s, s.Bound)
	}
	name := elements[len(elements)-1]
	return at.change(s, name, sources)
}

func (n *inode) change(s Step, name string, sources []*inode) error {
	old := n.children[name]
	switch s.Op {
	case OpRemove:
		if old == nil || old.children != nil {
			return fmt.Errorf("%v: nothing to remove", s)
		}
		delete(n.children, name)
	case OpMakeDir:
		if s.Bound && old != nil && old.children != nil {
			return nil
		}
		if old != nil {
			return fmt.Errorf("%v: exists", s)
		}
		n.children[name] = newDir(n.host, s.Mode)
	case OpLink:
		if old != nil {
			return fmt.Errorf("%v: exists", s)
		}
		n.children[name] = &inode{mode: fs.ModeSymlink | 0o777, link: s.Link}
	case OpChmod:
		if old == nil || old.children == nil || old.host {
			return fmt.Errorf("%v: not a directory of the node", s)
		}
		old.mode = fs.ModeDir | s.Mode
	case OpBind:
		if old == nil || old.children == nil {
			return fmt.Errorf("%v: not a mount point", s)
		}
		src := *sources[s.Bind]
		src.mounted, src.host = true, true
		n.children[name] = &src
	default:
		return fmt.Errorf("%v: unknown", s)
	}
	return nil
}
