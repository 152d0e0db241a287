package preflight

import (
	"context"
	"os"
	"strconv"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
)

// Minimum free space for data. The first start needs 240 MB for the node's own images and state, and the database grows by 64 MB at a
// time. A later start finds most of it. Below diskWarn few images fit.
const (
	diskFirst  = 400 << 20
	diskAgain  = 100 << 20
	diskWarn   = 1 << 30
	inodesFail = 5_000
	inodesWarn = 50_000
)

func checkDiskSpace(_ context.Context, h *host) []Finding {
	dir := h.in.Data.Dir
	fs, err := h.probes.Statfs(existing(dir))
	if err != nil {
		return unreadable(err)
	}
	details := map[string]string{"available": strconv.FormatUint(fs.Available, 10), "total": strconv.FormatUint(fs.Total, 10)}
	hint := []string{"# free space on that file system, or move dataDir to another:", "df -h " + hostinfo.Quote(existing(dir))}
	need, start := uint64(diskFirst), "the first start"
	if _, err := os.Stat(h.in.Data.ClusterCA()); err == nil {
		need, start = diskAgain, "a start"
	}
	var found []Finding
	switch mib := fs.Available >> 20; {
	case fs.Available < need:
		found = append(found, fail("%d MiB free for data dir %s, but %s needs %d", mib, dir, start, need>>20).with(details).hint(hint...))
	case fs.Available < diskWarn:
		found = append(found, warn("%d MiB free for data dir %s: few images will fit", mib, dir).with(details).hint(hint...))
	}
	if share, ok := evictionShare(h); ok && fs.Total > 0 && float64(fs.Available)*100/float64(fs.Total) < share {
		found = append(found, warn("less than %g%% free for data dir %s: the kubelet will evict pods (kubelet.evictionHard nodefs.available)", share, dir).
			with(details).hint(hint...))
	}
	switch {
	case fs.Inodes == 0:
	case fs.InodesFree < inodesFail:
		found = append(found, fail("%d inodes free for data dir %s, but a node needs %d", fs.InodesFree, dir, inodesFail).hint(hint[0], "df -i "+hostinfo.Quote(existing(dir))))
	case fs.InodesFree < inodesWarn:
		found = append(found, warn("%d inodes free for data dir %s: few images will fit", fs.InodesFree, dir).hint(hint[0], "df -i "+hostinfo.Quote(existing(dir))))
	}
	return orPass(found, "%d MiB free for data dir %s", fs.Available>>20, dir)
}

// evictionShare returns the free space, in percent, below which the kubelet evicts pods. ok is false if it is not set as a
// percentage.
func evictionShare(h *host) (float64, bool) {
	s, ok := strings.CutSuffix(h.cfg.Kubelet.EvictionHard["nodefs.available"], "%")
	if !ok {
		return 0, false
	}
	share, err := strconv.ParseFloat(s, 64)
	return share, err == nil
}
