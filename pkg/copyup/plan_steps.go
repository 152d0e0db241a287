package copyup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"syscall"
)

const varTmp = "/var/tmp"

// planRoots gives the copied-up directories the mode of a normal system: RootlessKit's tmpfs comes with 1777.
func (p *planner) planRoots() error {
	roots := make([]string, 0, len(p.roots))
	for root := range p.roots {
		roots = append(roots, root)
	}
	slices.Sort(roots)
	for _, root := range roots {
		e, err := p.view.Lstat(root)
		if err != nil {
			return fmt.Errorf("inspect copied-up directory: %w", err)
		}
		if modeBits(e.Mode) != modeBits(dirMode) {
			p.emit(Step{Op: OpChmod, Root: root, Path: root, Mode: dirMode})
		}
	}
	return p.planVarTmp()
}

// planVarTmp makes /var/tmp where the host has none. The host's own stays linked: it is on disk, and programs put large
// files there which do not belong in memory.
func (p *planner) planVarTmp() error {
	if p.rootOf(varTmp) != path.Dir(varTmp) || p.wants[varTmp] != nil {
		return nil
	}
	_, err := p.view.Lstat(varTmp)
	if isMissing(err) {
		p.emit(Step{Op: OpMakeDir, Root: path.Dir(varTmp), Path: varTmp, Mode: sharedMode})
		return nil
	}
	return err
}

func (p *planner) planWant(w *want) error {
	if w.bound {
		return p.planBound(w)
	}
	e, m, err := p.stateOf(w.path)
	if err != nil {
		return fmt.Errorf("inspect %s: %w", w.path, err)
	}
	if w.kind == kindGone {
		if e.isLink() && !m.fresh {
			p.emit(Step{Op: OpRemove, Root: w.root, Path: w.path})
		}
		return nil
	}
	stands := !m.fresh && e.Mode.IsDir()
	if !stands {
		if !m.fresh && e.Name != "" {
			p.emit(Step{Op: OpRemove, Root: w.root, Path: w.path})
		}
		p.emit(Step{Op: OpMakeDir, Root: w.root, Path: w.path, Mode: w.mode})
		m.fresh = true
	}
	p.made[w.path] = m
	switch {
	case w.kind == kindBind:
		if !stands || !e.Mounted {
			p.emit(Step{Op: OpBind, Root: w.root, Path: w.path, Bind: w.bind, Mode: p.spec.Binds[w.bind].Mode})
			p.made[w.path] = made{fresh: true}
		}
		return nil
	case stands:
		if w.kind == kindEmpty && modeBits(e.Mode) != modeBits(w.mode) {
			p.emit(Step{Op: OpChmod, Root: w.root, Path: w.path, Mode: w.mode})
		}
		return nil
	case w.kind == kindParent:
		return p.linkBack(w, m)
	}
	p.linkKept(w, m)
	return nil
}

// planBound plans what lies in a bound directory. What is there is not known before the bind is made, so making a
// directory that exists is no fault there.
func (p *planner) planBound(w *want) error {
	if w.kind == kindGone {
		return nil
	}
	e, err := p.view.Lstat(w.path)
	parent := p.made[path.Dir(w.path)]
	stands := err == nil && e.Mode.IsDir() && !parent.fresh
	if !stands {
		p.emit(Step{Op: OpMakeDir, Root: w.root, Path: w.path, Mode: w.mode, Bound: true})
	}
	p.made[w.path] = made{fresh: !stands}
	if w.kind == kindBind && (!stands || !e.Mounted) {
		p.made[w.path] = made{fresh: true}
		p.emit(Step{
			Op: OpBind, Root: w.root, Path: w.path, Bind: w.bind, Mode: p.spec.Binds[w.bind].Mode, Bound: true,
		})
	}
	return nil
}

// stateOf says what stands at name (Entry.Name "" for nothing) and from where its content would be linked back. When its
// parent is made by this plan nothing stands there yet (made.fresh), and what is seen is what the link to the parent
// shows.
func (p *planner) stateOf(name string) (Entry, made, error) {
	parent := p.made[path.Dir(name)]
	if parent.fresh && parent.base == "" {
		return Entry{}, made{fresh: true}, nil
	}
	e, err := p.view.Lstat(name)
	if isMissing(err) || parent.fresh && errors.Is(err, fs.ErrPermission) {
		return Entry{}, made{fresh: parent.fresh}, nil
	}
	if err != nil {
		return Entry{}, made{}, err
	}
	m := made{fresh: parent.fresh}
	switch {
	case e.isLink() && (!parent.fresh || parent.inPlace):
		m.base = e.Link
	case parent.fresh:
		m.base = deeper(parent.base) + "/" + path.Base(name)
	}
	m.inPlace = m.base != "" && p.inPlace(name, m.base)
	return e, m, nil
}

// linkBack links the entries of a directory that has just become real to where they were. A link of the host is made
// again as it was, because at its old place it resolves as it did.
func (p *planner) linkBack(w *want, m made) error {
	if m.base == "" {
		return nil
	}
	entries, err := p.view.ReadDir(w.path)
	if errors.Is(err, fs.ErrPermission) {
		p.linkKept(w, m) // cannot be listed, but names in it that are known may lead on
		return nil
	}
	if isMissing(err) {
		return nil // not a directory, so nothing is lost
	}
	if err != nil {
		return fmt.Errorf("list %s: %w", w.path, err)
	}
	for _, e := range entries {
		p.linkEntry(w, m, e)
	}
	return nil
}

func (p *planner) linkEntry(w *want, m made, e Entry) {
	name := path.Join(w.path, e.Name)
	if p.wants[name] != nil {
		return
	}
	text := deeper(m.base) + "/" + e.Name
	if e.isLink() && m.inPlace {
		text = e.Link
	}
	p.emit(Step{Op: OpLink, Root: w.root, Path: name, Link: text})
}

// linkKept links back, into a directory that is otherwise empty, the entries through which kept paths lead.
func (p *planner) linkKept(w *want, m made) {
	if m.base == "" {
		return
	}
	var done []string
	for _, name := range p.keep {
		if name == w.path || !within(name, w.path) {
			continue
		}
		for path.Dir(name) != w.path {
			name = path.Dir(name)
		}
		e, err := p.view.Lstat(name)
		if err != nil || slices.Contains(done, name) {
			continue
		}
		done = append(done, name)
		e.Name = path.Base(name)
		p.linkEntry(w, m, e)
	}
}

func (p *planner) emit(s Step) { p.steps = append(p.steps, s) }

// modeBits returns the bits of mode that chmod(2) sets, in its encoding.
func modeBits(mode os.FileMode) uint32 {
	bits := uint32(mode.Perm())
	if mode&os.ModeSticky != 0 {
		bits |= syscall.S_ISVTX
	}
	if mode&os.ModeSetgid != 0 {
		bits |= syscall.S_ISGID
	}
	if mode&os.ModeSetuid != 0 {
		bits |= syscall.S_ISUID
	}
	return bits
}
