package child

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/pkg/copyup"
	"github.com/rootlessnode/rootlessnode/pkg/kubeapi"
)

// Reasons of Events about hostPath volumes.
const (
	reasonVolatile = "VolatileHostPath"
	reasonHidden   = "HiddenHostPath"
)

// xtablesLock is a volume of many network agents, and keeps nothing.
const xtablesLock = "/run/xtables.lock"

// watchHostPaths records an Event on each pod of the node with a hostPath volume that is not what it may seem: in memory, or
// hidden from the node.
func (n *nodeRole) watchHostPaths(ctx context.Context, ready func()) error {
	c, err := n.client()
	if err != nil {
		return err
	}
	h := newHostPaths(fileSystem(n.cfg, n.rt))
	ready()
	return c.WatchHostPaths(ctx, n.cfg.NodeName, func(p kubeapi.HostPathPod) {
		for _, v := range p.Paths {
			reason, message := h.judge(v)
			if reason == "" {
				continue
			}
			n.tell(kubeapi.Event{
				Object: kubeapi.ObjectRef{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID},
				Type:   kubeapi.EventWarning, Reason: reason, Message: message, Host: n.cfg.NodeName,
			})
		}
	})
}

// hostPaths holds the directories inside whose file systems are not the data dir's nor the host's.
type hostPaths struct{ volatile, hidden []string }

func newHostPaths(s copyup.Spec) hostPaths {
	h := hostPaths{volatile: s.Volatile}
	for _, c := range s.Covers {
		h.hidden = append(h.hidden, c.Path)
	}
	return h
}

// judge returns the reason and message of the Event for a volume; nothing for an ordinary one.
func (h hostPaths) judge(v kubeapi.HostPath) (reason, message string) {
	file, at := fileSystemOf(v.Path)
	switch {
	case isOneOf(at, h.hidden):
		return reasonHidden, "the host's " + v.Path + " is hidden inside the node; " +
			"what the pod writes there is in memory and lost when the node stops"
	case !isOneOf(at, h.volatile), v.Path == xtablesLock, v.Type == "Socket", file != nil && file.Mode()&fs.ModeSocket != 0:
		return "", ""
	}
	return reasonVolatile, "hostPath " + v.Path + " is in memory and lost when the node stops; use a path below /var or /opt"
}

// fileSystemOf returns the device of the file system on which name is, or would be made, and name itself if it exists.
func fileSystemOf(name string) (file os.FileInfo, device uint64) {
	var st unix.Stat_t
	for at := path.Clean(name); path.IsAbs(at); at = path.Dir(at) {
		err := unix.Stat(at, &st)
		if err == nil {
			if at == path.Clean(name) {
				file, _ = os.Stat(name) // gone meanwhile: as if it had not been there
			}
			return file, st.Dev
		}
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) || at == "/" {
			break
		}
	}
	return nil, 0
}

// isOneOf reports whether a file system is that of one of dirs, and a tmpfs.
func isOneOf(device uint64, dirs []string) bool {
	for _, dir := range dirs {
		var st unix.Stat_t
		if unix.Stat(dir, &st) == nil && st.Dev == device && fileSystemType(dir) == unix.TMPFS_MAGIC {
			return true
		}
	}
	return false
}
