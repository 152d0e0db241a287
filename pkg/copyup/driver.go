package copyup

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"

	"github.com/rootless-containers/rootlesskit/v3/pkg/copyup"
	"github.com/rootless-containers/rootlesskit/v3/pkg/copyup/tmpfssymlink"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// Driver is a copy-up driver for RootlessKit's child.
type Driver struct {
	spec Spec
	log  logrus.FieldLogger
	base copyup.ChildDriver
	// scratch is the directory in which RootlessKit's driver creates a temporary one: /tmp, which is hard-coded there.
	scratch string
}

var _ copyup.ChildDriver = (*Driver)(nil)

// NewDriver returns a driver for s. A nil log disables logging.
func NewDriver(s Spec, log logrus.FieldLogger) *Driver {
	if log == nil {
		quiet := logrus.New()
		quiet.SetOutput(io.Discard)
		log = quiet
	}
	return &Driver{spec: s, log: log, base: tmpfssymlink.NewChildDriver(), scratch: "/tmp"}
}

// CopyUp copies up dirs, or Spec.CopyUp if dirs is empty, and changes them to match the Spec. It returns the directories
// that are copied up. RootlessKit calls it once. After an error the mount namespace is unusable.
//
// Runs in: child, after the mount propagation is set and before the network setup, which writes resolv.conf and hosts to
// /etc.
func (d *Driver) CopyUp(dirs []string) ([]string, error) {
	if len(dirs) == 0 {
		dirs = d.spec.CopyUp
	}
	roots, named, err := d.resolveDirs(dirs)
	if err != nil {
		return nil, err
	}
	open, err := d.open(roots)
	defer open.close()
	if err != nil {
		return nil, err
	}
	if err := d.copyUp(roots, open.bases); err != nil {
		return nil, err
	}
	if err := d.prepare(roots, open); err != nil {
		return named, err
	}
	if err := open.covers.mount(); err != nil {
		return named, err
	}
	if d.spec.MaskKmsg {
		return named, MaskKmsg()
	}
	return named, nil
}

// opened holds what has to be opened before copy-up changes the meaning of its paths.
type opened struct {
	sources []*os.File // of Spec.Binds
	bases   map[string]*os.File
	covers  covers
}

func (o *opened) close() {
	for _, f := range o.sources {
		_ = f.Close()
	}
	for _, f := range o.bases {
		_ = f.Close()
	}
	o.covers.close()
}

func (d *Driver) open(roots []string) (*opened, error) {
	var o opened
	var err, baseErr, coverErr error
	o.sources, err = openSources(d.spec.Binds)
	o.bases, baseErr = openBases(d.spec, outermost(roots))
	o.covers, coverErr = d.openCovers()
	return &o, errors.Join(err, baseErr, coverErr)
}

// prepare plans and applies the steps that follow the copy-up itself.
func (d *Driver) prepare(roots []string, open *opened) error {
	spec := d.spec
	spec.CopyUp = roots
	a := newApplier(open.sources, open.bases)
	defer a.close()
	if err := a.removeRewritten(spec); err != nil {
		return err
	}
	links, steps := linker{newPlanner(spec, liveView{})}, newPlanner(spec, liveView{})
	if err := links.planLinks(); err != nil {
		return fmt.Errorf("plan the links to the host's entries: %w", err)
	}
	if err := d.applySteps(a, links.steps); err != nil {
		return err
	}
	steps.spec.Merged = mergeable(withEscapes(spec, links.roots), links.roots)
	if err := steps.plan(); err != nil {
		return fmt.Errorf("plan the directories inside: %w", err)
	}
	if err := d.applySteps(a, steps.steps); err != nil {
		return err
	}
	for _, name := range append(links.hidden, steps.hidden...) {
		if steps.wants[name] == nil {
			d.log.Warnf("copy-up: the host's %s is not visible inside, because an entry of that name was created there", name)
		}
	}
	return nil
}

func (d *Driver) applySteps(a *applier, steps []Step) error {
	for _, s := range steps {
		d.log.Debugf("copy-up: %v", s)
		if err := a.apply(s); err != nil {
			return fmt.Errorf("prepare the directories inside: %v: %w", s, err)
		}
	}
	return nil
}

// resolveDirs returns the directories to copy up with links followed, and the corresponding elements of dirs. A directory
// that is a link into another one of the list (/opt -> var/opt) is copied up together with that one.
func (d *Driver) resolveDirs(dirs []string) (roots, named []string, err error) {
	var errs []error
	for _, dir := range dirs {
		root, err := d.resolveDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			d.log.Warnf("copy-up: the host has no %s; skipping it", dir)
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("copy up %q: %w", dir, err))
			continue
		}
		roots, named = append(roots, root), append(named, path.Clean(dir))
	}
	slices.Sort(roots)
	return slices.Compact(roots), named, errors.Join(errs...)
}

func (d *Driver) resolveDir(dir string) (string, error) {
	if err := checkPath(dir); err != nil {
		return "", errdefs.Class(errdefs.ErrConfig, err)
	}
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", err
	}
	scratch, err := filepath.EvalSymlinks(d.scratch)
	if err != nil {
		return "", err
	}
	if within(root, scratch) || within(scratch, root) {
		return "", errdefs.Config("%s cannot be copied up, nor can any directory above or below it", d.scratch)
	}
	return root, nil
}

// outermost returns those of the sorted roots that are not below another one.
func outermost(roots []string) (outer []string) {
	for _, root := range roots { // sorted: parents come first
		if !slices.ContainsFunc(outer, func(dir string) bool { return within(root, dir) }) {
			outer = append(outer, root)
		}
	}
	return outer
}

// copyUp copies up the outermost of roots with a private scratch directory: those with a persistent base onto that base, the
// others with RootlessKit's driver.
func (d *Driver) copyUp(roots []string, bases map[string]*os.File) error {
	outer := outermost(roots)
	if len(outer) == 0 {
		return nil
	}
	if err := refuseShared(outer); err != nil {
		return err
	}
	return d.withScratch(func() error {
		for _, root := range outer {
			if base := bases[root]; base != nil {
				if err := d.copyUpOnto(root, base); err != nil {
					return fmt.Errorf("copy up %s onto %s: %w", root, path.Join(d.spec.Persist, root), err)
				}
			}
		}
		onTmpfs := slices.DeleteFunc(outer, func(root string) bool { return bases[root] != nil })
		if len(onTmpfs) == 0 {
			return nil
		}
		if _, err := d.base.CopyUp(onTmpfs); err != nil {
			return fmt.Errorf("copy up %v: %w", onTmpfs, err)
		}
		return nil
	})
}

// refuseShared returns an error if a directory is on a shared mount, because RootlessKit's tmpfs would then propagate to the
// bind of the original and hide it.
func refuseShared(dirs []string) error {
	for _, dir := range dirs {
		shared, _, err := Propagation(dir)
		if err != nil {
			return fmt.Errorf("inspect %s: %w", dir, err)
		}
		if shared {
			return errdefs.Errorf("copy up %s: its mount is shared", dir).
				Hint("RootlessKit's copy-up needs the mount propagation rslave or rprivate")
		}
	}
	return nil
}

// withScratch runs f while a private tmpfs is mounted over the scratch directory. RootlessKit's driver binds each original
// below that directory and then moves the bind, which the kernel refuses if the scratch directory is on a shared mount. On an
// error the driver removes its temporary directory recursively, which at that moment contains the original (tmpfssymlink of
// RootlessKit v3.3.0; it once deleted a home below /var). On a private mount the move succeeds. The tmpfs is also needed on
// hosts whose /tmp is read-only, and it keeps leftovers of an interrupted f off the host. It can be removed when RootlessKit
// no longer needs a directory in /tmp.
func (d *Driver) withScratch(f func() error) error {
	if err := unix.Mount("none", d.scratch, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0700"); err != nil {
		return fmt.Errorf("mount a temporary tmpfs over %s: %w", d.scratch, err)
	}
	err := unix.Mount("none", d.scratch, "", unix.MS_PRIVATE, "")
	if err == nil {
		err = f()
	}
	if undo := unix.Unmount(d.scratch, unix.MNT_DETACH); undo != nil {
		err = errors.Join(err, fmt.Errorf("unmount the tmpfs over %s: %w", d.scratch, undo))
	}
	return err
}

// openSources opens the sources of binds before copy-up changes the meaning of their paths.
func openSources(binds []Bind) ([]*os.File, error) {
	files := make([]*os.File, 0, len(binds))
	var errs []error
	for _, b := range binds {
		err := checkPath(b.Source)
		if err == nil {
			var f *os.File
			if f, err = openPath(unix.AT_FDCWD, b.Source, 0); err == nil {
				files = append(files, f)
				continue
			}
		}
		errs = append(errs, fmt.Errorf("bind %q over %s: %w", b.Source, b.Target, err))
	}
	return files, errors.Join(errs...)
}
