package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

const (
	// volumeMode lets every user in a pod write to a volume, as other provisioners of local
	// volumes do: pods often run as another user than root and set no fsGroup. Only pods
	// with the volume can reach the directory, because its parent is closed.
	volumeMode = fs.ModePerm
	// maxName is the longest name of a directory entry.
	maxName = 255
)

// directory is the directory of the volumes. Names of volumes come from the API: they
// are never used as paths, and links that pods create are never followed.
type directory struct {
	path string
	root *os.Root
}

func openDirectory(path string) (*directory, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("directory of the volumes: %w", err)
	}
	return &directory{path: path, root: root}, nil
}

// volumeDir returns the name of the directory of the volume called volume, for a claim. Users can find their
// data by this name. The claim's name is shortened if necessary, because the name of
// the volume is already unique.
func volumeDir(namespace, claim, volume string) (string, error) {
	rest := maxName - len(namespace) - len(volume) - len("__")
	name := strings.Join([]string{namespace, claim[:min(len(claim), max(rest, 0))], volume}, "_")
	if len(name) > maxName || !fs.ValidPath(name) || strings.ContainsAny(name, "/\x00") || volume == "" {
		return "", fmt.Errorf("volume %q of claim %s/%s: invalid name of a directory", volume, namespace, claim)
	}
	return name, nil
}

// create creates the directory of a volume and returns its path. A directory of that
// name is left from an attempt that was interrupted, because names contain the UID of the claim.
func (d *directory) create(name string) (string, error) {
	if err := d.root.Mkdir(name, volumeMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("create the directory of the volume: %w", err)
	}
	info, err := d.root.Lstat(name)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is not a directory", name)
	}
	if err == nil {
		err = d.root.Chmod(name, volumeMode) // regardless of the umask
	}
	if err != nil {
		return "", fmt.Errorf("create the directory of the volume: %w", err)
	}
	return filepath.Join(d.path, name), nil
}

// remove removes the directory at path, which belongs to the volume called volume, with
// everything in it. It refuses every other path, and directories in which something is
// mounted. It succeeds if the directory does not exist.
func (d *directory) remove(path, volume string) error {
	parent, name := filepath.Split(path)
	if parent != d.path+"/" || volume == "" || !strings.HasSuffix(name, "_"+volume) {
		return fmt.Errorf("remove %s: not the directory of volume %s in %s; the volume was not created by this node", path, volume, d.path)
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(path))
	if err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	if len(mounts) > 0 {
		return fmt.Errorf("remove %s: a file system is mounted on %s; unmount it, or restart the node", path, mounts[0].Mountpoint)
	}
	if err := d.root.RemoveAll(name); err != nil {
		return fmt.Errorf("remove %s: %w", path, err)
	}
	return nil
}

// free returns the free space of the file system in bytes.
func (d *directory) free() (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(d.path, &st); err != nil {
		return 0, &fs.PathError{Op: "statfs", Path: d.path, Err: err}
	}
	return int64(st.Bavail) * st.Bsize, nil
}
