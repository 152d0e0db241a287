package preflight

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/datadir"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// Magic numbers (statfs(2)) of file systems that do not support or may not support files owned by subordinate ids.
const (
	magicNFS    = unix.NFS_SUPER_MAGIC
	magicSMB    = unix.SMB_SUPER_MAGIC
	magicSMB2   = 0xfe534d42
	magicCIFS   = 0xff534d42
	magicAFS    = unix.AFS_SUPER_MAGIC
	magicCeph   = 0x00c36400
	magicLustre = 0x0bd00bd0
	magicFUSE   = unix.FUSE_SUPER_MAGIC
	magic9P     = unix.V9FS_MAGIC
)

func networkFS(magic int64) string {
	switch uint32(magic) {
	case magicNFS:
		return "NFS"
	case magicSMB, magicSMB2, magicCIFS:
		return "CIFS"
	case magicAFS:
		return "AFS"
	case magicCeph:
		return "Ceph"
	case magicLustre:
		return "Lustre"
	}
	return ""
}

// Minimum free space for data. Below diskFail the node's own images and state do not fit. Below diskWarn few images fit.
const (
	diskFail   = 200 << 20
	diskWarn   = 1 << 30
	inodesFail = 5_000
	inodesWarn = 50_000
)

const localDiskHint = "# keep the data on a local disk: dataDir: /path/on/a/local/disk"

func checkSocketPaths(_ context.Context, h *host) []Finding {
	path := h.in.Runtime.LongestSocket()
	details := map[string]string{"path": path, "length": strconv.Itoa(len(path)), "limit": strconv.Itoa(layout.SocketPathMax)}
	if len(path) > layout.SocketPathMax {
		return []Finding{fail("socket path too long: %s has %d characters, the kernel allows %d", path, len(path), layout.SocketPathMax).
			with(details).hint(fmt.Sprintf("# use a --name that is shorter by %d, or a shorter XDG_RUNTIME_DIR such as /run/user/%d",
			len(path)-layout.SocketPathMax, h.in.UID))}
	}
	return []Finding{pass("socket paths fit: %d of %d characters", len(path), layout.SocketPathMax).with(details)}
}

func checkDataDir(_ context.Context, h *host) []Finding {
	dir := h.in.Data.Dir
	at := existing(dir)
	if st, err := os.Stat(at); err == nil && !st.IsDir() {
		return []Finding{fail("data dir %s: %s is not a directory", dir, at).hint(localDiskHint)}
	}
	on, err := h.probes.Statfs(at)
	if err != nil {
		return unreadable(err)
	}
	var found []Finding
	if kind := networkFS(on.Type); kind != "" {
		found = append(found, fail("data dir %s is on %s, which does not support subordinate ids: images cannot be unpacked", dir, kind).hint(localDiskHint))
	}
	switch uint32(on.Type) {
	case magicFUSE, magic9P:
		found = append(found, warn("data dir %s is on a file system (FUSE or 9p) that often rejects files owned by subordinate ids", dir).hint(localDiskHint))
	}
	if on.Flags&unix.ST_RDONLY != 0 {
		found = append(found, fail("data dir %s is on a read-only mount", dir).hint(localDiskHint))
	} else if err := unix.Access(at, unix.W_OK|unix.X_OK); err != nil {
		found = append(found, fail("data dir %s: %s is not writable by uid %d", dir, at, h.in.UID).hint(
			"# make the account its owner, or choose another directory with dataDir:",
			asRoot(fmt.Sprintf("install -d -m 0700 -o %d %s", h.in.UID, hostinfo.Quote(dir)))))
	}
	found = append(found, accessibleToOthers(h, dir)...)
	found = append(found, mountFlags(h, dir, on.Flags)...)
	return orPass(found, "data dir %s", dir)
}

// accessibleToOthers warns if other accounts can access the data dir, unless the account owns it: then the start changes its
// mode.
func accessibleToOthers(h *host, dir string) []Finding {
	st, err := os.Stat(dir)
	if err != nil || st.Mode().Perm()&0o077 == 0 {
		return nil
	}
	owner := int(st.Sys().(*syscall.Stat_t).Uid)
	if owner == h.in.UID {
		return nil
	}
	return []Finding{warn("data dir %s has mode %04o and belongs to uid %d: other accounts can see the names of pods and namespaces",
		dir, st.Mode().Perm(), owner).hint(
		asRoot(fmt.Sprintf("chown %d %s", h.in.UID, hostinfo.Quote(dir))), asRoot("chmod 0700 "+hostinfo.Quote(dir)))}
}

// checkDataIDs compares the ids with which the data was created with the current ids of the account.
func checkDataIDs(ctx context.Context, h *host) []Finding {
	record, err := datadir.ReadRecord(h.in.Data, h.in.UID)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		return []Finding{pass("no data with recorded ids yet")}
	case err != nil:
		return []Finding{failure(err)}
	}
	now, account, err := h.probes.IDs(h.cfg.Subids.Source)
	if err != nil && len(missingSubidKinds(ctx, h)) == 0 {
		return []Finding{warn("not checked: %v", err)}
	}
	changes := record.IDs.Changes(now)
	if len(changes) == 0 {
		return []Finding{pass("the ids of the data match those of the account")}
	}
	f := fail("data dir %s was created with other ids: %s", h.in.Data.Dir, datadir.ChangesText(changes))
	for _, line := range datadir.Restore(changes, account) {
		if !strings.HasPrefix(line, "#") {
			line = asRoot(line)
		}
		f.fix.add(line)
	}
	f.fix.steps = append(f.fix.steps, datadir.DeleteHint(h.cfg.Name)...)
	return []Finding{f}
}

// mountFlags reports restrictive flags of the data dir's mount. Mounts of the node inherit them and cannot clear them.
func mountFlags(h *host, dir string, flags int64) []Finding {
	var names []string
	for _, f := range []struct {
		bit  int64
		name string
	}{{unix.ST_NOSUID, "nosuid"}, {unix.ST_NODEV, "nodev"}, {unix.ST_NOEXEC, "noexec"}} {
		if flags&f.bit != 0 {
			names = append(names, f.name)
		}
	}
	details := map[string]string{"dataDir": dir, "flags": strings.Join(names, ",")}
	switch {
	case flags&unix.ST_NOEXEC != 0:
		return []Finding{fail("data dir %s is on a mount with %s: programs in images cannot be run", dir, strings.Join(names, ",")).
			with(details).hint(localDiskHint)}
	case flags&unix.ST_NOSUID != 0:
		return []Finding{warn("data dir %s is on a mount with %s: set-uid programs in images (sudo, ping) lose their privilege", dir, strings.Join(names, ",")).
			with(details).hint(localDiskHint)}
	}
	return nil // nodev has no effect: a user namespace cannot use device files on a disk anyway
}

func checkDiskSpace(_ context.Context, h *host) []Finding {
	dir := h.in.Data.Dir
	fs, err := h.probes.Statfs(existing(dir))
	if err != nil {
		return unreadable(err)
	}
	details := map[string]string{"available": strconv.FormatUint(fs.Available, 10), "total": strconv.FormatUint(fs.Total, 10)}
	hint := []string{"# free space on that file system, or move dataDir to another:", "df -h " + hostinfo.Quote(existing(dir))}
	var found []Finding
	switch mib := fs.Available >> 20; {
	case fs.Available < diskFail:
		found = append(found, fail("%d MiB free for data dir %s, but a node needs %d", mib, dir, diskFail>>20).with(details).hint(hint...))
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
