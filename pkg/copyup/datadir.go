package copyup

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
)

// Mount describes the mount of a directory.
type Mount struct {
	// Path is the requested directory or, if it does not exist, the nearest existing one above it.
	Path string
	// Mountpoint, Source and FSType are as in mountinfo.
	Mountpoint, Source, FSType string
	// ReadOnly, NoSuid, NoDev and NoExec are flags of the mount. They cannot be removed inside the node.
	ReadOnly, NoSuid, NoDev, NoExec bool
	// NoSymFollow: links on the mount are not followed (Linux 5.10 or later).
	NoSymFollow bool
	// IDMapped: the owners on the mount differ from those in the file system (Linux 5.12 or later).
	IDMapped bool
}

// MountFlags returns the mount of path, or of the nearest existing directory above it. It changes nothing.
//
// Runs in: parent, child or either.
func MountFlags(path string) (Mount, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return Mount{}, err
	}
	for {
		m, err := mountOf(path)
		if errors.Is(err, fs.ErrNotExist) && path != "/" {
			path = filepath.Dir(path)
			continue
		}
		if err != nil {
			return Mount{}, err
		}
		return mountFrom(path, m.Mountpoint, m.Source, m.FSType, m.Options, m.VFSOptions), nil
	}
}

func mountFrom(path, mountpoint, source, fsType, options, superOptions string) Mount {
	m := Mount{Path: path, Mountpoint: mountpoint, Source: source, FSType: fsType}
	for option := range strings.SplitSeq(options, ",") {
		switch option {
		case "ro":
			m.ReadOnly = true
		case "nosuid":
			m.NoSuid = true
		case "nodev":
			m.NoDev = true
		case "noexec":
			m.NoExec = true
		case "nosymfollow":
			m.NoSymFollow = true
		case "idmapped":
			m.IDMapped = true
		}
	}
	for option := range strings.SplitSeq(superOptions, ",") {
		m.ReadOnly = m.ReadOnly || option == "ro"
	}
	return m
}

// Flags returns the names of the restricting flags that are set: nosuid, nodev, noexec.
func (m Mount) Flags() []string {
	var flags []string
	for _, f := range []struct {
		set  bool
		name string
	}{{m.NoSuid, "nosuid"}, {m.NoDev, "nodev"}, {m.NoExec, "noexec"}} {
		if f.set {
			flags = append(flags, f.name)
		}
	}
	return flags
}

// Remote reports whether the file system is served by another machine, which does not know the node's user namespace and
// refuses to store the owners of files in images and volumes.
func (m Mount) Remote() bool {
	switch m.FSType {
	case "nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "ceph", "afs", "gpfs", "beegfs", "ocfs2", "gfs2", "9p",
		"orangefs", "pvfs2", "coda", "ncpfs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph-fuse", "fuse.s3fs":
		return true
	}
	return false
}

// Fuse reports whether a program in user space serves the file system. Such a program may not be able to store owners.
func (m Mount) Fuse() bool {
	return m.FSType == "fuse" || m.FSType == "fuseblk" || strings.HasPrefix(m.FSType, "fuse.")
}

// DataDirFinding is a problem of the mount of a data dir.
type DataDirFinding struct {
	// Refuse: the node cannot work there. Otherwise the finding is a warning.
	Refuse bool
	// Message describes the problem, Hint how to fix it.
	Message, Hint string
}

// DataDirFindings returns the problems of the mount of a data dir. It is pure.
//
// Runs in: parent, child or either.
func DataDirFindings(m Mount) []DataDirFinding {
	const elsewhere = "choose a data dir on a local disk"
	var found []DataDirFinding
	add := func(refuse bool, hint, format string, args ...any) {
		found = append(found, DataDirFinding{Refuse: refuse, Hint: hint, Message: fmt.Sprintf(format, args...)})
	}
	switch {
	case m.Remote():
		add(true, elsewhere+": the server cannot store the owners of container files",
			"%s is on %s (mounted at %s), a remote file system", m.Path, m.FSType, m.Mountpoint)
	case m.Fuse():
		add(false, elsewhere+" if starting a container fails with \"lchown: operation not permitted\"",
			"%s is on %s (mounted at %s), which may not store the owners of container files",
			m.Path, m.FSType, m.Mountpoint)
	}
	if m.ReadOnly {
		add(true, "choose a data dir that can be written", "%s is on a read-only mount (%s)", m.Path, m.Mountpoint)
	}
	if m.NoSymFollow {
		add(true, "choose a data dir on another mount, or as root: mount -o remount,symfollow "+m.Mountpoint,
			"%s is on a mount with the flag nosymfollow (%s): volumes and the entries of the host need symbolic links", m.Path, m.Mountpoint)
	}
	if flags := m.Flags(); len(flags) > 0 {
		wanted := make([]string, len(flags))
		for i, flag := range flags {
			wanted[i] = strings.TrimPrefix(flag, "no")
		}
		add(false, fmt.Sprintf("choose a data dir on a mount without these flags, or as root: mount -o remount,%s %s",
			strings.Join(wanted, ","), m.Mountpoint),
			"%s is on a mount with the flags %s (%s): they are locked in a user namespace, and volumes or images may fail",
			m.Path, strings.Join(flags, ","), m.Mountpoint)
	}
	if m.IDMapped {
		add(false, elsewhere+" that is mounted without id mapping",
			"%s is on an id-mapped mount (%s): owners that are not in the mapping cannot be stored", m.Path, m.Mountpoint)
	}
	return found
}
