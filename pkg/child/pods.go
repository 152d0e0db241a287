package child

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

// kubepods is the cgroup below which the kubelet keeps all pods.
const kubepods = "kubepods"

// stopPods ends the pods when the node stops: TERM to every process of theirs, PodStop for them to go, then KILL. The
// kubelet has stopped before, so nobody starts them again; at the next start it finds them dead and makes them anew.
//
// It works on the cgroups and not through the CRI, because it must also work while the runtime does not answer.
func (n *nodeRole) stopPods(ctx context.Context) error {
	root := filepath.Join(layout.InsideCgroup, kubepods)
	if !populated(root) {
		return nil
	}
	n.log.Info("stopping the pods")
	if err := signalAll(root, unix.SIGTERM); err != nil {
		n.log.WithError(err).Warn("ask pods to end")
	}
	limit, cancel := context.WithTimeout(ctx, n.cfg.Timeouts.PodStop.D())
	defer cancel()
	waitEmpty(limit, root)
	if populated(root) {
		n.log.WithField("limit", n.cfg.Timeouts.PodStop.D()).Warn("pods did not end in time, killing them")
	}
	return n.tree.Kill(kubepods)
}

// leftovers removes what the supervisor left on purpose: the pods, the runtime's shims, programs run by hand. The cgroups
// of pods go too: those made inside a pod with a user namespace of its own belong to a subordinate id, which nobody
// outside may remove.
func (n *nodeRole) leftovers() {
	for _, name := range []string{kubepods, leaf("exec"), leaf(n.runtimeUnit())} {
		if err := n.tree.Remove(name); err != nil {
			n.log.WithError(err).Warn("remove what is left")
		}
	}
}

// emptyPoll is how often a cgroup is looked at until it is empty.
const emptyPoll = 20 * time.Millisecond

func waitEmpty(ctx context.Context, dir string) {
	tick := time.NewTicker(emptyPoll)
	defer tick.Stop()
	for populated(dir) {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// populated tells whether any process lives in the cgroup or below (cgroup.events, cgroup-v2.rst).
func populated(dir string) bool {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.events"))
	return err == nil && strings.Contains(string(b), "populated 1")
}

// signalAll signals every process in the cgroup and below, once.
func signalAll(root string, sig unix.Signal) error {
	var errs []error
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !d.IsDir() {
			return err
		}
		b, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if err != nil {
			return nil // removed meanwhile, or threaded: nothing of ours
		}
		for _, field := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
				if err := unix.Kill(pid, sig); err != nil && !errors.Is(err, unix.ESRCH) {
					errs = append(errs, err)
				}
			}
		}
		return nil
	})
	return errors.Join(append(errs, err)...)
}
