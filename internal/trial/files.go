package trial

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/atomicfile"
	"github.com/rootlessnode/rootlessnode/internal/proc"
)

// files does the steps with files. It removes them, because some belong to ids that the account cannot remove outside.
func (w Work) files(r Result) {
	at := func(name string) string { return filepath.Join(w.Dir, name) }
	defer func() {
		entries, _ := os.ReadDir(w.Dir) // empty on an error
		for _, e := range entries {
			_ = os.RemoveAll(at(e.Name())) // the caller reports a directory that is not empty
		}
	}()
	plain := at("plain")
	if err := os.WriteFile(plain, []byte("plain"), 0o600); err != nil {
		r.add(StepOwner, err)
		return
	}
	r.add(StepOwner, errors.Join(os.Lchown(plain, w.LastID, w.LastID), os.Lchown(plain, 0, 0)))
	r.add(StepExec, tryExec(at("exec")))
	r.add(StepSymlink, trySymlink(plain, at("symlink")))
	r.add(StepLink, os.Link(plain, at("link")))
	r.add(StepRename, atomicfile.Write(at("renamed"), nil, 0o600))
	r.add(StepLock, tryLock(at("lock")))
	r.add(StepMap, tryMap(at("map")))
	r.add(StepSocket, trySocket(w.Dir))
	const longest = 255 // NAME_MAX of Linux; images have long names
	r.add(StepNames, os.WriteFile(at(strings.Repeat("n", longest)), nil, 0o600))
	r.add(StepOverlay, tryOverlay(w.Dir))
}

// tryExec executes a script. Only an error of execve(2) itself counts.
func tryExec(path string) error {
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o700); err != nil {
		return err
	}
	err := exec.Command(path).Run()
	if errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.EPERM) {
		return err
	}
	return nil
}

func trySymlink(target, path string) error {
	if err := os.Symlink(target, path); err != nil {
		return err
	}
	_, err := os.ReadFile(path) // ELOOP on a mount with nosymfollow
	return err
}

func tryLock(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return os.NewSyscallError("flock", unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB))
}

// tryMap maps a file like bbolt does, the database of etcd and containerd.
func tryMap(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	size := os.Getpagesize()
	if err := f.Truncate(int64(size)); err != nil {
		return err
	}
	b, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	b[0] = 1
	return errors.Join(os.NewSyscallError("munmap", unix.Munmap(b)), f.Sync())
}

// trySocket listens on a socket in dir, under a name of this process, because the path may be too long for a socket.
func trySocket(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	l, err := net.Listen("unix", filepath.Join(proc.FDPath(f), "socket"))
	if err != nil {
		return err
	}
	return l.Close()
}

// tryOverlay mounts overlayfs like the snapshotter and removes a file of the lower layer, which leaves a whiteout.
func tryOverlay(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"lower", "upper", "work", "merged", "lower/sub"} {
		if err := os.Mkdir(at(name), 0o700); err != nil {
			return err
		}
	}
	if err := os.WriteFile(at("lower/sub/file"), nil, 0o600); err != nil {
		return err
	}
	// The options must not contain the path, which may have a comma or a colon.
	base := proc.FDPath(d)
	options := "lowerdir=" + base + "/lower,upperdir=" + base + "/upper,workdir=" + base + "/work,userxattr"
	merged := at("merged")
	if err := unix.Mount("overlay", merged, "overlay", 0, options); err != nil {
		return &os.PathError{Op: "mount overlayfs", Path: merged, Err: err}
	}
	err = errors.Join(os.Remove(filepath.Join(merged, "sub", "file")), os.RemoveAll(filepath.Join(merged, "sub")), os.Mkdir(filepath.Join(merged, "sub"), 0o700))
	return errors.Join(err, os.NewSyscallError("umount", unix.Unmount(merged, unix.MNT_DETACH)))
}
