// Package cgroupv2 detects, claims, arranges and removes the part of the cgroup v2 tree that a node owns.
//
// The tree of one node, below the delegated directory D:
//
//	D                            delegated by systemd (a scope or unit with Delegate=), or a directory that the account owns
//	├── evac                     other processes that were in D: a cgroup that delegates controllers must not contain any
//	└── rootlessnode-NAME        S, the subtree; root of the child's cgroup namespace
//	    ├── system
//	    │   ├── parent           the parent role and its helpers
//	    │   ├── child            RootlessKit's child and the node role
//	    │   └── COMPONENT        one leaf each
//	    └── kubepods             managed by the kubelet
//
// DetectHost, Detect, Claim and Subtree run in the parent. Prepare, OpenPrepared and RemovePrepared are for root on a host
// without systemd. Tree is for the node role inside. The package follows these rules from the kernel's
// Documentation/admin-guide/cgroup-v2.rst: controllers are enabled one by one (so that a refused one does not prevent the
// others), only in cgroups without processes, and only from the top down; only an account that may write cgroup.procs of
// the common ancestor can move a process; cgroups are removed from the leaves up.
//
// The package does not change cgroups that it does not own, and writes no limits outside the subtree, because systemd
// resets the files of a unit's own cgroup (systemd issue 40438).
//
// containerd/cgroups/v3 (cgroup2.Manager, loaded with the mount point, so that hybrid hosts work) is used to read the type
// of a cgroup. It is unsuitable for the rest: ToggleControllers writes the whole list at once and from the mount point
// down, Kill's fallback waits for children that belong to os/exec, Delete sleeps, and its statistics report zero for
// missing values.
package cgroupv2

import (
	"io"
	"os"

	"github.com/sirupsen/logrus"
)

// Wanted returns the controllers that a node needs to enforce the limits of pods. If one is missing, the node is degraded.
func Wanted() []string { return []string{"cpu", "cpuset", "memory", "pids"} }

// Optional returns the controllers that are enabled if they are available.
func Optional() []string { return []string{"io", "hugetlb", "rdma"} }

// Names of the cgroups that this package creates.
const (
	// evacLeaf receives the other processes of D. RootlessKit's command line uses the same name.
	evacLeaf = "evac"
	// enterLeaf is the leaf of a prepared directory that `host enter` moves a process of the user to.
	enterLeaf = "enter"
	// preparedDir is the directory in the mount point in which root prepares one directory for each user.
	preparedDir = "rootlessnode"
	// systemDir, parentLeaf and childLeaf are below S.
	systemDir  = "system"
	parentLeaf = systemDir + "/parent"
	childLeaf  = systemDir + "/child"
)

// Options overrides paths, for tests. The zero value uses the real host.
type Options struct {
	// MountInfo and ProcSelfCgroup default to /proc/self/mountinfo and /proc/self/cgroup.
	MountInfo      string
	ProcSelfCgroup string
	// RuntimeDir is the user's XDG_RUNTIME_DIR, where the systemd user manager listens. It defaults to the variable, then
	// to /run/user/UID.
	RuntimeDir string
	// Booted defaults to /run/systemd/system, which exists where systemd is PID 1 (sd_booted(3)).
	Booted string
	// Log receives messages that are not returned as errors. nil disables it.
	Log logrus.FieldLogger
}

func (o Options) withDefaults() Options {
	def := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	def(&o.MountInfo, "/proc/self/mountinfo")
	def(&o.ProcSelfCgroup, "/proc/self/cgroup")
	def(&o.RuntimeDir, os.Getenv("XDG_RUNTIME_DIR"))
	def(&o.RuntimeDir, userRuntimeDir(os.Geteuid()))
	def(&o.Booted, "/run/systemd/system")
	if o.Log == nil {
		l := logrus.New()
		l.SetOutput(io.Discard)
		o.Log = l
	}
	return o
}
