// Package copyup prepares the file system inside the node before the node starts.
//
// RootlessKit's copy-up mounts a tmpfs over a directory, binds the original below it as ".roNNN" and fills the tmpfs with
// links to the original's entries. A program cannot write through a link to a directory that belongs to the host's root,
// and cannot create entries in it. This package therefore runs RootlessKit's driver and then replaces every path that a
// component must own by a real directory, and its parents too. The other entries of these parents are linked to their
// originals, so that they keep their names (for example a home below /var/lib, or the runtime dir below /run). Directories
// that must survive the node are bound from the data dir.
//
// If Spec.Persist is set, the base of a copied-up directory is a directory of the data dir instead of a tmpfs, so that the
// entries that pods and users create there survive the node. The links to the host's entries are compared with the host at
// each start (see links.go). All other entries of the base were created inside; they are kept, and hide entries of the
// host with the same name.
//
// Runs in: child, as root of the node's user namespace, with mount propagation slave or private (RootlessKit's
// "rslave"). Propagation is also useful in the parent.
//
// It writes only to the base of a copied-up directory and inside the requested bind mounts. It follows no link while
// writing, and checks the device of each directory of a path.
//
// Limits of copy-up:
//   - A new entry that the host creates at the top of a copied-up directory is visible only while FollowHost runs.
//   - A relative link of the host that is two or more levels below a copied-up directory and leads out of it (such as
//     /etc/ssl/certs -> ../../var/lib/x) keeps its meaning only below a persistent directory, and only if withEscapes finds it.
//   - With SELinux enforcing, the tmpfs at /run may have a label that confined host programs (iptables) cannot search.
//     Labels belong to the policy of the host and are not set here.
package copyup

import (
	"os"
	"path"
	"slices"
)

// Bind is a directory of the host that is bound to a standard path inside, so that its content survives the node.
type Bind struct {
	// Source is the absolute path of an existing directory on the host. It is opened before any directory is copied up, so
	// it may be below a copied-up directory.
	Source string
	// Target is the absolute path inside. It must be below a copied-up directory.
	Target string
	// Mode is set on Source. Zero leaves its mode unchanged.
	Mode os.FileMode
}

// Dir is a real, writable directory inside that contains no links to the host. It is on the base of its copied-up directory,
// so it survives the node if that base does.
type Dir struct {
	// Path is the absolute path inside. If it is below the Target of a Bind, it is created in the bound directory.
	Path string
	// Mode is its mode, independent of the umask. Zero means 0755.
	Mode os.FileMode
}

// Spec describes the file system inside.
type Spec struct {
	// CopyUp lists the directories to copy up: absolute, and neither / nor /tmp nor below /tmp. Directories that the host
	// does not have are skipped. Links are followed. A directory below another one becomes a real directory there.
	CopyUp []string
	// Real lists the directories that components own. Those below a directory that is not copied up are skipped.
	Real []Dir
	// Binds lists the directories that survive the node. A Bind replaces a Real of the same path.
	Binds []Bind
	// Keep lists paths of the host that must keep their names inside even below a Real directory: the home directory, the
	// runtime dir, the executable. The sources of Binds are always kept.
	Keep []string
	// Persist is the directory of the host that contains the bases of copied-up directories. For example, that of /opt is
	// Persist/opt. It is created if it is missing. If it is empty, all bases are tmpfs.
	Persist string
	// Volatile lists the copied-up directories whose base is a tmpfs even if Persist is set.
	Volatile []string
	// Merged lists directories that become real, with links to all entries of the host, so that new entries can be created
	// there. It applies to directories below a persistent one that the host has and the node may not write to.
	Merged []string
	// Rewritten lists files on a persistent base that the node writes at each start. Those of the last run are removed first.
	Rewritten []string
	// Covers lists directories of the host that nothing inside may reach.
	Covers []Cover
	// MaskKmsg: call MaskKmsg.
	MaskKmsg bool
}

const (
	dirMode    os.FileMode = 0o755
	sharedMode             = os.ModeSticky | 0o777
)

// DefaultMerged returns the directories of the Filesystem Hierarchy Standard below /var in which programs expect to be able
// to create entries.
func DefaultMerged() []string {
	return []string{"/var/cache", "/var/lib", "/var/local", "/var/log", "/var/opt", "/var/spool"}
}

// persistent reports whether the base of a copied-up directory survives the node.
func (s Spec) persistent(root string) bool {
	return s.Persist != "" && !slices.Contains(s.Volatile, root)
}

// DefaultReal returns the directories that container runtimes, network plugins and the kubelet write, and that may exist on
// the host and belong to its root. The link to the file /run/xtables.lock is always removed and needs no entry here.
func DefaultReal() []Dir {
	lists := []struct {
		parent string
		names  []string
	}{
		{"/run", []string{
			"netns", "containerd", "nri", "crio", "runc", "crun", "containers", "flannel", "kubernetes", "rootlessnode",
		}},
		{"/var/lib", []string{"kubelet", "containerd", "cni", "containers", "crio"}},
		{"/var/log", []string{"pods", "containers"}},
		{"/etc", []string{"cni", "containerd", "crio", "containers", "kubernetes", "rootlessnode"}},
		{"/opt", []string{"cni"}},
	}
	dirs := []Dir{{Path: "/run/lock", Mode: sharedMode}}
	for _, l := range lists {
		for _, name := range l.names {
			dirs = append(dirs, Dir{Path: path.Join(l.parent, name), Mode: dirMode})
		}
	}
	return dirs
}
