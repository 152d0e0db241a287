package copyup

import (
	"fmt"
	"os"
	"path"
	"syscall"
)

const varTmp = "/var/tmp"

// planRoots sets the usual mode on the copied-up directories: RootlessKit's tmpfs has mode 1777, and the mode of a
// persistent base depends on the umask.
func (p *planner) planRoots() error {
	for _, root := range sortedRoots(p) {
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

// planVarTmp creates /var/tmp if the host has none. That of the host stays linked, because it is on disk and programs create
// large files there, which should not be in memory.
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
		if e.isLink() {
			p.emit(Step{Op: OpRemove, Root: w.root, Path: w.path})
		}
		return nil
	}
	exists := e.Mode.IsDir()
	if !exists {
		if e.Name != "" {
			if !e.isLink() && p.spec.persistent(w.root) {
				return conflict(p, w.path)
			}
			p.emit(Step{Op: OpRemove, Root: w.root, Path: w.path})
		}
		p.emit(Step{Op: OpMakeDir, Root: w.root, Path: w.path, Mode: w.mode})
		m.fresh = true
	}
	p.made[w.path] = m
	switch {
	case w.kind == kindBind:
		if !exists || !e.Mounted {
			p.emit(Step{Op: OpBind, Root: w.root, Path: w.path, Bind: w.bind, Mode: p.spec.Binds[w.bind].Mode})
			p.made[w.path] = made{fresh: true}
		}
		return nil
	case w.kind == kindParent:
		return linker{p}.linkEntries(w.root, w.path)
	case exists && modeBits(e.Mode) != modeBits(w.mode):
		p.emit(Step{Op: OpChmod, Root: w.root, Path: w.path, Mode: w.mode})
	}
	return linker{p}.linkKept(w.root, w.path)
}

// planBound plans a path in a bound directory. The content of that directory is unknown before it is bound, so creating a
// directory that exists is not an error there.
func (p *planner) planBound(w *want) error {
	if w.kind == kindGone {
		return nil
	}
	e, err := p.view.Lstat(w.path)
	parent := p.made[path.Dir(w.path)]
	exists := err == nil && e.Mode.IsDir() && !parent.fresh
	if !exists {
		p.emit(Step{Op: OpMakeDir, Root: w.root, Path: w.path, Mode: w.mode, Bound: true})
	}
	p.made[w.path] = made{fresh: !exists}
	if w.kind == kindBind && (!exists || !e.Mounted) {
		p.made[w.path] = made{fresh: true}
		p.emit(Step{
			Op: OpBind, Root: w.root, Path: w.path, Bind: w.bind, Mode: p.spec.Binds[w.bind].Mode, Bound: true,
		})
	}
	return nil
}

// stateOf returns the entry at name, which is empty (Entry.Name "") in a directory that this plan creates, and the source of
// the links in a directory at name.
func (p *planner) stateOf(name string) (e Entry, m made, err error) {
	if !p.made[path.Dir(name)].fresh {
		if e, err = p.view.Lstat(name); err != nil && !isMissing(err) {
			return Entry{}, made{}, err
		}
	}
	m, err = p.hostEntry(name)
	return e, m, err
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
