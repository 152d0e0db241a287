// Package cgroupv2 finds, claims, arranges and removes the part of the cgroup v2 tree that a node owns.
//
// The tree of one node, below the delegated directory D:
//
//	D                            delegated: by systemd (a scope or unit with Delegate=), or a directory we own
//	├── evac                     bystanders that sat in D: a cgroup that hands on controllers may hold no process
//	└── rootlessnode-NAME        S, the subtree; root of the child's cgroup namespace
//	    ├── system
//	    │   ├── parent           the parent role and its helpers
//	    │   ├── child            RootlessKit's child and the node role
//	    │   └── COMPONENT        one leaf each
//	    └── kubepods             kubelet's
//
// Detection and claiming run in the parent (DetectHost, Detect, Claim, Subtree); what root does once for a host without
// systemd is Prepare and its company; Tree is for the node role inside. Rules that everything here follows, from the
// kernel's Documentation/admin-guide/cgroup-v2.rst: controllers are enabled one by one (a refused one must not cost the
// rest), only in cgroups without processes, and only from the top down; a process moves only by the hand of someone who
// may write cgroup.procs of the common ancestor; removal goes from the leaves up.
//
// It refuses to touch a cgroup it does not own, and to write limits outside the subtree: systemd resets what it finds in
// a unit's own cgroup (systemd issue 40438).
//
// containerd/cgroups/v3 (cgroup2.Manager, loaded with the mount point, so that hybrid hosts work) serves for reading a
// cgroup's type. It does not serve for the rest: ToggleControllers writes the whole list at once and from the mount point
// down, Kill's fallback waits for children that belong to os/exec, Delete sleeps, and its statistics say zero for what is
// not there.
package cgroupv2

import (
	"io"
	"os"

	"github.com/sirupsen/logrus"
)

// Wanted returns the controllers that a node needs to enforce pods' limits. One that is missing degrades the node.
func Wanted() []string { return []string{"cpu", "cpuset", "memory", "pids"} }

// Optional returns the controllers that are enabled when they are there and not missed when they are not.
func Optional() []string { return []string{"io", "hugetlb", "rdma"} }

// Names of the cgroups we make.
const (
	// evacLeaf takes the bystanders of D. RootlessKit's command line uses the same name.
	evacLeaf = "evac"
	// enterLeaf is where `host enter` puts a process of the user, in a prepared directory.
	enterLeaf = "enter"
	// preparedDir is the directory in the mount point below which root prepares one directory for each user.
	preparedDir = "rootlessnode"
	// systemDir, parentLeaf and childLeaf are below S.
	systemDir  = "system"
	parentLeaf = systemDir + "/parent"
	childLeaf  = systemDir + "/child"
)

// Options says where the package looks. The zero value is the running process on the real host.
type Options struct {
	// MountInfo and ProcSelfCgroup stand for /proc/self/mountinfo and /proc/self/cgroup.
	MountInfo      string
	ProcSelfCgroup string
	// Proc stands for /proc, where the parent of a process is looked up.
	Proc string
	// RuntimeDir is the user's XDG_RUNTIME_DIR, where the systemd user manager listens. Empty: the variable, else
	// /run/user/UID.
	RuntimeDir string
	// Booted stands for /run/systemd/system, which exists where systemd is PID 1 (sd_booted(3)).
	Booted string
	// Log gets what is worth knowing and no error. nil: nothing.
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
	def(&o.Proc, "/proc")
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
