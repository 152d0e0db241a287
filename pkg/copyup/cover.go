package copyup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/proc"
)

// Cover hides a directory of the host inside with an empty tmpfs, or a file or socket with /dev/null, under each of its
// names. A privileged container can unmount its own copy of the cover.
type Cover struct {
	// Path is the path to hide. It may be below another covered directory. A path that the host does not have is skipped at
	// the start; FollowHost covers it when it appears at the top of a copied-up directory.
	Path string
	// Keep lists the paths below Path that remain reachable. Paths outside of it, and missing paths, are skipped.
	Keep []string
}

// cover is a Cover of an existing path, with links followed.
type cover struct {
	path string
	mode fs.FileMode
	keep []kept
}

// kept is an open file or directory of the host, with its path relative to its cover.
type kept struct {
	rel  string
	file *os.File
	dir  bool
}

type covers []cover

func (c covers) close() {
	for _, one := range c {
		for _, k := range one.keep {
			_ = k.file.Close()
		}
	}
}

// openCovers opens the kept paths of all covers.
func (d *Driver) openCovers() (covers, error) {
	var all covers
	for _, c := range d.spec.Covers {
		target, err := filepath.EvalSymlinks(c.Path)
		if errors.Is(err, fs.ErrNotExist) || slices.ContainsFunc(all, func(c cover) bool { return within(target, c.path) }) {
			continue
		}
		if err != nil {
			return all, fmt.Errorf("cover %s: %w", c.Path, err)
		}
		info, err := os.Stat(target)
		if err != nil {
			return all, fmt.Errorf("cover %s: %w", c.Path, err)
		}
		one := cover{path: target, mode: info.Mode()}
		for _, name := range c.Keep {
			k, err := openKept(target, name)
			if err != nil {
				all = append(all, one)
				return all, fmt.Errorf("keep %s below the covered %s: %w", name, c.Path, err)
			}
			if k.file != nil {
				one.keep = append(one.keep, k)
			}
		}
		slices.SortFunc(one.keep, func(a, b kept) int { return strings.Compare(a.rel, b.rel) }) // a directory before its entries
		all = append(all, one)
	}
	return all, nil
}

func openKept(top, name string) (kept, error) {
	target, err := filepath.EvalSymlinks(name)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return kept{}, nil
	}
	if err != nil || !within(target, top) {
		return kept{}, err
	}
	if target == top {
		return kept{}, errors.New("it is the covered directory itself")
	}
	fd, err := unix.Open(target, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return kept{}, err
	}
	k := kept{rel: strings.TrimPrefix(target, top+"/"), file: os.NewFile(uintptr(fd), target)}
	info, err := k.file.Stat()
	k.dir = err == nil && info.IsDir()
	return k, err
}

// mount covers the directories and binds their kept paths.
func (c covers) mount() error {
	for _, one := range c {
		if err := one.mount(); err != nil {
			return fmt.Errorf("cover %s: %w", one.path, err)
		}
	}
	return nil
}

func (c cover) mount() error {
	if !c.mode.IsDir() {
		return BindKeepingFlags(os.DevNull, c.path, 0)
	}
	if err := mountCover(c.path, c.mode); err != nil {
		return err
	}
	for _, k := range c.keep {
		target := path.Join(c.path, k.rel)
		if err := os.MkdirAll(path.Dir(target), 0o700); err != nil {
			return err
		}
		if _, err := os.Lstat(target); err == nil {
			continue // it is in a directory that is already kept
		}
		var err error
		if k.dir {
			err = os.Mkdir(target, 0o700)
		} else {
			err = os.WriteFile(target, nil, 0o600)
		}
		if err == nil {
			err = BindKeepingFlags(proc.FDPath(k.file), target, 0)
		}
		if err != nil {
			return fmt.Errorf("keep %s: %w", target, err)
		}
	}
	return nil
}

// mountCover mounts a tmpfs of the given mode over a directory. Programs inside may write to it; it does not survive the node.
func mountCover(dir string, mode fs.FileMode) error {
	return unix.Mount("none", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("mode=%#o,size=16m", modeBits(mode)))
}
