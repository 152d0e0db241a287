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
	// scratch is where RootlessKit's driver puts a directory of its own: /tmp, hard-coded there.
	scratch string
}

var _ copyup.ChildDriver = (*Driver)(nil)

// NewDriver returns a driver that does what s asks. A nil log is silent.
func NewDriver(s Spec, log logrus.FieldLogger) *Driver {
	if log == nil {
		quiet := logrus.New()
		quiet.SetOutput(io.Discard)
		log = quiet
	}
	return &Driver{spec: s, log: log, base: tmpfssymlink.NewChildDriver(), scratch: "/tmp"}
}

// CopyUp copies up dirs, or Spec.CopyUp when dirs is empty, and brings them to what the Spec asks. It returns those of
// dirs that are copied up. RootlessKit calls it, once; after a fault the mount namespace is of no use.
//
// Runs in: child, after mount propagation is set and before the network, which puts resolv.conf and hosts into /etc.
func (d *Driver) CopyUp(dirs []string) ([]string, error) {
	if len(dirs) == 0 {
		dirs = d.spec.CopyUp
	}
	roots, named, err := d.resolveDirs(dirs)
	if err != nil {
		return nil, err
	}
	sources, err := openSources(d.spec.Binds)
	defer func() {
		for _, f := range sources {
			_ = f.Close()
		}
	}()
	if err != nil {
		return nil, err
	}
	if err := d.copyUp(roots); err != nil {
		return nil, err
	}
	if err := d.prepare(roots, sources); err != nil {
		return named, err
	}
	if d.spec.MaskKmsg {
		return named, MaskKmsg()
	}
	return named, nil
}

// prepare plans and carries out what comes after RootlessKit's copy-up.
func (d *Driver) prepare(roots []string, sources []*os.File) error {
	spec := d.spec
	spec.CopyUp = roots
	steps, err := Plan(spec, liveView{})
	if err != nil {
		return fmt.Errorf("plan the directories inside: %w", err)
	}
	a := newApplier(sources)
	defer a.close()
	for _, s := range steps {
		d.log.Debugf("copy-up: %v", s)
		if err := a.apply(s); err != nil {
			return fmt.Errorf("prepare the directories inside: %v: %w", s, err)
		}
	}
	return nil
}

// resolveDirs returns the directories to copy up with links followed, and which of dirs they stand for. A directory that
// is only a link into another one of the list (/opt -> var/opt) comes with that one.
func (d *Driver) resolveDirs(dirs []string) (roots, named []string, err error) {
	var errs []error
	for _, dir := range dirs {
		root, err := d.resolveDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			d.log.Warnf("copy-up: the host has no %s, so nothing can be put there", dir)
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
		return "", errdefs.Class(errdefs.ErrConfig, fmt.Errorf("%s is not possible, nor anything above or below it", d.scratch))
	}
	return root, nil
}

// copyUp runs RootlessKit's driver over the outermost of roots, with a scratch directory of our own.
func (d *Driver) copyUp(roots []string) error {
	var outer []string
	for _, root := range roots { // sorted, so each comes after what it lies below
		if !slices.ContainsFunc(outer, func(dir string) bool { return within(root, dir) }) {
			outer = append(outer, root)
		}
	}
	if len(outer) == 0 {
		return nil
	}
	if err := refuseShared(outer); err != nil {
		return err
	}
	return d.withScratch(func() error {
		if _, err := d.base.CopyUp(outer); err != nil {
			return fmt.Errorf("copy up %v: %w", outer, err)
		}
		return nil
	})
}

// refuseShared refuses directories on shared mounts: there RootlessKit's tmpfs would show in its own copy of the
// original too, and hide it.
func refuseShared(dirs []string) error {
	for _, dir := range dirs {
		shared, _, err := Propagation(dir)
		if err != nil {
			return fmt.Errorf("inspect %s: %w", dir, err)
		}
		if shared {
			return errdefs.WithHint(
				fmt.Errorf("copy up %s: its mount is shared", dir),
				"RootlessKit's copy-up needs the mount propagation rslave or rprivate")
		}
	}
	return nil
}

// withScratch runs f while a private tmpfs lies over the scratch directory. RootlessKit's driver binds each original
// below that directory and moves the bind from there, which is refused where the scratch directory is on a shared mount;
// and its answer to a fault is to remove its directory with all that is in it, which at that moment is the original
// (tmpfssymlink of RootlessKit v3.3.0; seen to delete a home below /var). On a private mount the move succeeds. The
// tmpfs also serves hosts whose /tmp is read-only, and keeps what an interrupted f leaves off the host. It may go when
// RootlessKit no longer needs a directory in /tmp.
func (d *Driver) withScratch(f func() error) error {
	if err := unix.Mount("none", d.scratch, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0700"); err != nil {
		return fmt.Errorf("mount a tmpfs over %s for the time of copy-up: %w", d.scratch, err)
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

// openSources opens what is to be bound while its names still lead there directly.
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
