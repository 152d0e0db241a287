package noderole

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/pkg/copyup"
)

// Reasons of Events about features of pods.
const (
	reasonVolatile = "VolatileHostPath"
	reasonHidden   = "HiddenHostPath"
	reasonOwnUsers = "UserNamespaceNotSupported"
)

// xtablesLock is mounted by many network agents and holds no data.
const xtablesLock = "/run/xtables.lock"

// podFeatureWatch records an Event on each pod of the node that has a hostPath volume in memory or a hostPath volume that
// is hidden from the node, and on each pod that requests a user namespace of its own.
type podFeatureWatch struct {
	node   string
	files  copyup.Spec
	client clientFunc
	events *eventRecorder
}

func (w *podFeatureWatch) Run(ctx context.Context, ready func()) error {
	c, err := w.client()
	if err != nil {
		return err
	}
	h := newHostPaths(w.files)
	ready()
	return c.WatchPodFeatures(ctx, w.node, func(p kubeapi.PodFeatures) {
		warn := func(reason, message string) {
			w.events.record(kubeapi.Event{
				Object: kubeapi.ObjectRef{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID},
				Type:   kubeapi.EventWarning, Reason: reason, Message: message,
			})
		}
		if p.OwnUsers {
			warn(reasonOwnUsers, "hostUsers: false does not work on a rootless node: the kernel permits id-mapped mounts of files on the host's "+
				"disks only to root of the host. Without it, root in the pod is the account that runs the node, not root of the host")
		}
		for _, v := range p.Paths {
			if reason, message := h.check(v); reason != "" {
				warn(reason, message)
			}
		}
	})
}

// hostPaths holds the directories inside whose file systems belong neither to the data dir nor to the host.
type hostPaths struct{ volatile, hidden []string }

func newHostPaths(s copyup.Spec) hostPaths {
	h := hostPaths{volatile: s.Volatile}
	for _, c := range s.Covers {
		h.hidden = append(h.hidden, c.Path)
	}
	return h
}

// check returns the reason and message of the Event for a volume, or empty strings for an ordinary volume.
func (h hostPaths) check(v kubeapi.HostPath) (reason, message string) {
	file, at := fileSystemOf(v.Path)
	switch {
	case isOneOf(at, h.hidden):
		return reasonHidden, "hostPath " + v.Path + " of the host is hidden inside the node; " +
			"files that the pod writes there are in memory and lost when the node stops"
	case !isOneOf(at, h.volatile), v.Path == xtablesLock, v.Type == "Socket", file != nil && file.Mode()&fs.ModeSocket != 0:
		return "", ""
	}
	return reasonVolatile, "hostPath " + v.Path + " is in memory and lost when the node stops; use a path below /var or /opt"
}

// fileSystemOf returns the device of the file system that contains name or would contain it, and the file itself if it
// exists.
func fileSystemOf(name string) (file os.FileInfo, device uint64) {
	var st unix.Stat_t
	for at := path.Clean(name); path.IsAbs(at); at = path.Dir(at) {
		err := unix.Stat(at, &st)
		if err == nil {
			if at == path.Clean(name) {
				file, _ = os.Stat(name) // a file that was removed meanwhile counts as missing
			}
			return file, st.Dev
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) || at == "/" {
			break
		}
	}
	return nil, 0
}

// isOneOf reports whether device is the tmpfs of one of dirs.
func isOneOf(device uint64, dirs []string) bool {
	for _, dir := range dirs {
		var st unix.Stat_t
		if unix.Stat(dir, &st) == nil && st.Dev == device && fileSystemType(dir) == unix.TMPFS_MAGIC {
			return true
		}
	}
	return false
}
