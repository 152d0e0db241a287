// Package copyup prepares the file system inside the node, before anything of the node starts.
//
// RootlessKit's copy-up lays a tmpfs over a directory, binds the original below it as ".roNNN" and fills the tmpfs with
// links into that original. A link into a directory of the host's root is of no use to a program that must write there,
// and nothing can be created beside it one level further down. This package runs RootlessKit's driver and then turns
// every path that a component must own into a real directory: its parents too, whose other entries are linked back to
// their originals, so that whatever else lives there (a home below /var/lib, the runtime dir below /run) keeps its name.
// Directories that must survive are bound from the data dir.
//
// Where Spec.Persist is set, the base of a copied-up directory is not a tmpfs but a directory of the data dir, so that what
// pods and users make there survives the node. The links to the host's entries are compared with the host at each start
// (see links.go); whatever else is in the base was made inside and is kept, and hides an entry of the host with its name.
//
// Runs in: child, as root of the node's user namespace, with mount propagation slave or private (RootlessKit's
// "rslave"). Only Propagation, MountFlags and DataDirFindings are of use in the parent as well.
//
// It refuses to write anywhere but on the base of a copied-up directory and inside the directories it was told to
// bind. It follows no link while writing, and checks the device of each directory on the way.
//
// What copy-up does not give, by its nature:
//   - A new entry that the host makes at the top of a copied-up directory is seen only while FollowHost runs.
//   - A relative link of the host that lies two or more levels below a copied-up directory and climbs out of it (such
//     as /var/lib/x/y -> ../../../usr/y) ends one level too deep, because its directory is reached through ".roNNN".
//     Links at the top, and those in directories that this package made real, resolve as before.
//   - With SELinux enforcing, the tmpfs at /run may carry a label that confined host programs (iptables) cannot search.
//     Labels are policy of the host and are not set here.
package copyup

import (
	"os"
	"path"
	"slices"
)

// Bind is a directory of the host that appears inside under a standard name, so that its content survives the node.
type Bind struct {
	// Source is the absolute path of an existing directory as the host names it. It is opened before anything is copied
	// up, so it may lie below a copied-up directory.
	Source string
	// Target is the absolute path inside. It must lie below a copied-up directory.
	Target string
	// Mode is given to the bound directory itself, that is, to Source. Zero leaves Source as it is.
	Mode os.FileMode
}

// Dir is a real, writable directory inside in which nothing of the host's is linked. It lives on the base of its copied-up
// directory, and so goes with the node or survives it as that does.
type Dir struct {
	// Path is the absolute path inside. One that lies below a Bind's Target is made in the bound directory.
	Path string
	// Mode is its mode, whatever the umask; zero means 0755.
	Mode os.FileMode
}

// Spec says what the file system inside is to look like.
type Spec struct {
	// CopyUp are the directories to copy up: absolute, neither / nor /tmp nor anything below /tmp. One that the host does
	// not have is skipped. One that is a link is followed, one that lies below another becomes a real directory there.
	CopyUp []string
	// Real are the directories that components own. One below a directory that was not copied up is left out.
	Real []Dir
	// Binds are the directories that survive. A Bind takes the place of a Real of the same path.
	Binds []Bind
	// Keep are paths of the host that must keep their names inside even if they lie below a Real directory: home, runtime
	// dir, the executable. The sources of Binds are always kept.
	Keep []string
	// Persist is the directory of the host with the bases of copied-up directories: that of /opt is Persist/opt. It is made
	// when it is missing. Empty: all bases are tmpfs.
	Persist string
	// Volatile are the copied-up directories whose base is a tmpfs even so.
	Volatile []string
	// Merged are directories that become real, with all entries of the host linked, where the host has them and the node may
	// not write to them: new entries can then be made there. Only those below a persistent directory count.
	Merged []string
	// Rewritten are files on a persistent base that the node writes at each start. Those of the last run are removed first.
	Rewritten []string
	// Covers are directories of the host that nothing inside may reach.
	Covers []Cover
	// MaskKmsg asks for MaskKmsg.
	MaskKmsg bool
}

const (
	dirMode    os.FileMode = 0o755
	sharedMode             = os.ModeSticky | 0o777
)

// DefaultMerged returns the directories of the file system hierarchy standard below /var in which programs expect to be
// able to make entries of their own.
func DefaultMerged() []string {
	return []string{"/var/cache", "/var/lib", "/var/local", "/var/log", "/var/opt", "/var/spool"}
}

// persistent reports whether the base of a copied-up directory survives the node.
func (s Spec) persistent(root string) bool {
	return s.Persist != "" && !slices.Contains(s.Volatile, root)
}

// DefaultReal returns the directories that container runtimes, network plugins and the kubelet write, wherever the host
// may have one of its own that belongs to its root. The link to /run/xtables.lock, a file, is always removed and needs
// no entry here.
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
