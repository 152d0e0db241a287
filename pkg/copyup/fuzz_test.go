package copyup

import (
	"errors"
	"io/fs"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// choices derives a host and a Spec from bytes.
type choices struct{ data []byte }

func (c *choices) next(n int) int {
	if len(c.data) == 0 {
		return 0
	}
	b := int(c.data[0])
	c.data = c.data[1:]
	return b % n
}

func (c *choices) path() string {
	names := []string{"a", "b", "c", "run", "lib"}
	name := []string{"/run", "/var", "/srv"}[c.next(3)]
	for range 1 + c.next(4) {
		name = path.Join(name, names[c.next(len(names))])
	}
	return name
}

// host returns a host with links of all kinds, except relative links that lead out of a copied-up directory from two or more
// levels below it, which RootlessKit's copy-up does not support (see the package comment).
func (c *choices) host() *model {
	m := hostModel("/run/", "/var/tmp/", "/srv/", "/home/u/one/", "/home/u/two/")
	for range c.next(24) {
		name := c.path()
		node := &inode{host: true, mode: 0o644}
		switch c.next(4) {
		case 0:
			node.mode, node.link = fs.ModeSymlink|0o777, c.path()
		case 1:
			node.mode, node.link = fs.ModeSymlink|0o777, path.Base(c.path())
			if path.Dir(path.Dir(name)) == "/" {
				node.link = ".." + c.path()
			}
		case 2:
			node = newDir(true, 0o755)
		}
		m.put(name, node)
	}
	return m
}

func (c *choices) spec() Spec {
	s := Spec{CopyUp: []string{"/run", "/var"}}
	for range c.next(6) {
		s.Real = append(s.Real, Dir{Path: c.path()})
	}
	for _, source := range []string{"/home/u/one", "/home/u/two"}[:c.next(3)] {
		s.Binds = append(s.Binds, Bind{Source: source, Target: c.path()})
	}
	for range c.next(3) {
		s.Keep = append(s.Keep, c.path())
	}
	return s
}

func allPaths(n *inode, at string, visit func(string)) {
	for name, child := range n.children {
		visit(path.Join(at, name))
		allPaths(child, path.Join(at, name), visit)
	}
}

// FuzzPlan checks with arbitrary hosts and specs that no step changes the host, that every target is a real directory with
// real parents, that a second plan is empty, and that every path that does not lead through a directory of the node still
// resolves as before.
func FuzzPlan(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("a host of many names, and of some links between them"))
	f.Add([]byte{9, 1, 2, 4, 1, 0, 1, 1, 0, 0, 1, 3, 4, 0, 1, 2, 3, 4, 3, 1, 1, 4, 0, 1, 2, 0, 1, 3, 2, 1, 1, 4, 2})
	f.Fuzz(func(t *testing.T, data []byte) {
		c := &choices{data}
		m := c.host()
		before := map[string]*inode{}
		through := map[string][]string{}
		allPaths(m.root, "/", func(name string) {
			if n, visited, err := m.resolve(name, true); err == nil {
				before[name], through[name] = n, visited
			}
		})
		spec := c.spec()
		var listing []string
		allPaths(m.root, "/", func(name string) {
			listing = append(listing, name+" "+m.lookupPlain(name).mode.String()[:1]+" "+m.lookupPlain(name).link)
		})
		if err := applyPlan(m, spec); err != nil {
			if errors.Is(err, errdefs.ErrConfig) {
				return
			}
			t.Fatalf("%v\nhost: %q\nspec: %+v", err, listing, spec)
		}
		ours := targets(t, m, spec)
		for name, want := range before {
			if !touches(through[name], ours, want.mode.IsDir()) && !found(m, name, want) {
				t.Fatalf("%s is not found any more\nhost: %q\nspec: %+v", name, listing, spec)
			}
		}
	})
}

// targets checks that the wanted paths are real and returns their true names.
func targets(t *testing.T, m *model, spec Spec) []string {
	ours := []string{"/run/xtables.lock"}
	for _, d := range spec.Real {
		ours = append(ours, d.Path)
	}
	for _, b := range spec.Binds {
		ours = append(ours, b.Target)
	}
	p := &planner{view: m, roots: map[string]string{"/run": ".ro1", "/var": ".ro1"}}
	for i := 1; i < len(ours); i++ {
		name, err := p.canonical(ours[i])
		if err != nil {
			t.Fatal(err)
		}
		ours[i] = name
		if n := m.lookupPlain(name); p.rootOf(name) != "" && (n == nil || !n.mode.IsDir()) {
			t.Fatalf("%s is not real\nspec: %+v", name, spec)
		}
	}
	return ours
}

// touches reports whether a path leads through a directory of the node, or is a file in place of such a directory.
func touches(visited, ours []string, isDir bool) bool {
	for _, name := range visited {
		for _, dir := range ours {
			if within(name, dir) || !isDir && within(dir, name) {
				return true
			}
		}
	}
	return false
}

// found reports whether name leads to want, or to a real directory that replaced it.
func found(m *model, name string, want *inode) bool {
	n, _, err := m.resolve(name, true)
	if err != nil {
		return false
	}
	return n == want || want.mode.IsDir() && n.mode.IsDir() && !n.host
}

// base returns the content of a persistent base after earlier runs: entries created inside, and managed links, some of them
// stale.
func (c *choices) base() *inode {
	m := &model{root: newDir(false, 0o755)}
	for range c.next(12) {
		name := path.Join("/", strings.TrimPrefix(c.path(), "/var"))
		node := &inode{mode: 0o644}
		switch c.next(4) {
		case 0:
			node.mode, node.link = fs.ModeSymlink|0o777, c.path()
		case 1:
			node.mode, node.link = fs.ModeSymlink|0o777, managedLink(".ro1/"+path.Base(c.path()))
		case 2:
			node = newDir(false, 0o755)
		}
		m.put(name, node)
	}
	allPaths(m.root, "/", func(name string) { m.lookupPlain(name).host = false }) // put creates directories of the host
	return m.root
}

// FuzzPersist checks with arbitrary hosts, bases and specs that no step changes the host, that a second start plans almost no
// steps, and that entries created inside are not changed or removed, except links in place of directories that the node
// needs.
func FuzzPersist(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("a host of many names, and of some links between them, and a base of many more"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c := &choices{data}
		m := c.host()
		base := c.base()
		spec := c.spec()
		spec.Persist, spec.Volatile = "/srv", []string{"/run"}
		for range c.next(3) {
			spec.Merged = append(spec.Merged, "/var/"+path.Base(c.path()))
		}
		made := map[string]*inode{}
		allPaths(base, "/var", func(name string) {
			if n := (&model{root: &inode{children: map[string]*inode{"var": base}}}).lookupPlain(name); !isManaged(Entry{Mode: n.mode, Link: n.link}) {
				made[name] = n
			}
		})
		var sources []*inode
		for _, b := range spec.Binds {
			n, _, _ := m.resolve(b.Source, true)
			sources = append(sources, n)
		}
		m.copyUp("/run")
		base.children[".ro1"] = m.lookupPlain("/var")
		m.root.children["var"] = base
		p, err := applyPersistent(m, spec, sources)
		if err != nil {
			if errors.Is(err, errdefs.ErrConfig) || errors.Is(err, errdefs.ErrPreflight) {
				return
			}
			t.Fatalf("%v\nspec: %+v", err, spec)
		}
		again, err := applyPersistent(m, spec, sources)
		// A directory whose source is a directory that the first plan created gets links to the new entries there.
		if err != nil || slices.ContainsFunc(again.steps, func(s Step) bool { return s.Op != OpLink }) {
			t.Fatalf("second plan: %v %v\nspec: %+v", err, again, spec)
		}
		for name, n := range made {
			if n.mode&fs.ModeSymlink != 0 && p.wants[name] != nil || belowBind(p, name) {
				continue
			}
			if m.lookupPlain(name) != n {
				t.Fatalf("%s was created inside and is missing\nspec: %+v", name, spec)
			}
		}
	})
}

// belowBind reports whether name is hidden by a bind of the node.
func belowBind(p *planner, name string) bool {
	for _, w := range p.wants {
		if w.kind == kindBind && within(name, w.path) {
			return true
		}
	}
	return false
}

// applyPersistent simulates a start on a copied-up m. The returned planner has all steps.
func applyPersistent(m *model, s Spec, sources []*inode) (*planner, error) {
	links, p := newPlanner(s, m), newPlanner(s, m)
	for _, plan := range []struct {
		of  *planner
		run func() error
	}{{links, linker{links}.planLinks}, {p, p.plan}} {
		if err := plan.run(); err != nil {
			return p, err
		}
		for _, step := range plan.of.steps {
			if err := m.apply(step, sources); err != nil {
				return p, err
			}
		}
	}
	p.steps = append(links.steps, p.steps...)
	return p, nil
}
