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

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/pkg/datadir"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

// File systems on which a user namespace cannot keep files of many owners, by magic number (statfs(2)).
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

// Room for data. Under diskFail not even the node's own images and state fit; under diskWarn hardly any image does.
const (
	diskFail   = 200 << 20
	diskWarn   = 1 << 30
	inodesFail = 5_000
	inodesWarn = 50_000
)

const elsewhere = "# keep the data on a local disk: dataDir: /path/on/a/local/disk in the config, or --set dataDir=..."

func checkSocketPaths(_ context.Context, h *host) []Finding {
	path := h.in.Runtime.LongestSocket()
	details := map[string]string{"path": path, "length": strconv.Itoa(len(path)), "limit": strconv.Itoa(layout.SocketPathMax)}
	if len(path) > layout.SocketPathMax {
		return []Finding{fail("socket path too long: %s has %d characters, the kernel takes %d", path, len(path), layout.SocketPathMax).
			with(details).hint(fmt.Sprintf("# take a --name shorter by %d, or a shorter XDG_RUNTIME_DIR such as /run/user/%d",
			len(path)-layout.SocketPathMax, h.in.UID))}
	}
	return []Finding{pass("socket paths fit: %d of %d characters", len(path), layout.SocketPathMax).with(details)}
}

func checkDataDir(_ context.Context, h *host) []Finding {
	dir := h.in.Data.Dir
	at := existing(dir)
	if st, err := os.Stat(at); err == nil && !st.IsDir() {
		return []Finding{fail("data dir %s: %s is not a directory", dir, at).hint(elsewhere)}
	}
	on, err := h.probes.Statfs(at)
	if err != nil {
		return unreadable(err)
	}
	var found []Finding
	if kind := networkFS(on.Type); kind != "" {
		found = append(found, fail("data dir %s is on %s, which knows nothing of subordinate ids: images cannot be unpacked", dir, kind).hint(elsewhere))
	}
	switch uint32(on.Type) {
	case magicFUSE, magic9P:
		found = append(found, warn("data dir %s is on a file system (FUSE or 9p) that often refuses owners which are subordinate ids", dir).hint(elsewhere))
	}
	if on.Flags&unix.ST_RDONLY != 0 {
		found = append(found, fail("data dir %s is on a read-only mount", dir).hint(elsewhere))
	} else if err := unix.Access(at, unix.W_OK|unix.X_OK); err != nil {
		found = append(found, fail("data dir %s: %s is not writable for uid %d", dir, at, h.in.UID).hint(
			"# let the account own it, or choose another by dataDir:",
			asRoot(fmt.Sprintf("install -d -m 0700 -o %d %s", h.in.UID, hostinfo.Quote(dir)))))
	}
	found = append(found, h.othersMayLook(dir)...)
	found = append(found, h.mountFlags(dir, on.Flags)...)
	return orPass(found, "data dir %s", dir)
}

// othersMayLook warns of a data dir that other accounts have access to, unless the start takes that away: it can do so in a
// directory that the account owns.
func (h *host) othersMayLook(dir string) []Finding {
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

// checkDataIDs compares the ids that the data was created with and those that the account has now.
func checkDataIDs(ctx context.Context, h *host) []Finding {
	record, err := datadir.ReadRecord(h.in.Data, h.in.UID)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		return []Finding{pass("no data with recorded ids yet")}
	case err != nil:
		return []Finding{fail("%v", err).hint(errdefs.ReportOf(err).Hints...)}
	}
	now, account, err := h.probes.IDs(h.cfg.Subids.Source)
	if err != nil && len(h.withoutSubids(ctx)) == 0 {
		return []Finding{warn("not checked: %v", err)}
	}
	changes := record.IDs.Changes(now)
	if len(changes) == 0 {
		return []Finding{pass("the data has the ids of the account")}
	}
	f := fail("data dir %s was created with other ids: %s", h.in.Data.Dir, datadir.ChangesText(changes))
	for _, line := range datadir.Restore(changes, account) {
		if !strings.HasPrefix(line, "#") {
			line = asRoot(line)
		}
		f.fix.add(line)
	}
	f.fix.add(strings.Split(datadir.DeleteHint(h.cfg.Name), "\n")...)
	return []Finding{f}
}

// mountFlags names the flags that the data dir's mount has. They are locked in the node's mounts: none can drop them.
func (h *host) mountFlags(dir string, flags int64) []Finding {
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
		return []Finding{fail("data dir %s is on a mount with %s: no program of an image can be run", dir, strings.Join(names, ",")).
			with(details).hint(elsewhere)}
	case flags&unix.ST_NOSUID != 0:
		return []Finding{warn("data dir %s is on a mount with %s: set-uid programs in images (sudo, ping) lose their privilege", dir, strings.Join(names, ",")).
			with(details).hint(elsewhere)}
	}
	return nil // nodev alone changes nothing: a user namespace cannot use device files of a disk anyway
}

func checkDiskSpace(_ context.Context, h *host) []Finding {
	dir := h.in.Data.Dir
	fs, err := h.probes.Statfs(existing(dir))
	if err != nil {
		return unreadable(err)
	}
	details := map[string]string{"available": strconv.FormatUint(fs.Available, 10), "total": strconv.FormatUint(fs.Total, 10)}
	hint := []string{"# make room on that file system, or put dataDir on another:", "df -h " + hostinfo.Quote(existing(dir))}
	var found []Finding
	switch mib := fs.Available >> 20; {
	case fs.Available < diskFail:
		found = append(found, fail("%d MiB free for data dir %s, and a node needs %d", mib, dir, diskFail>>20).with(details).hint(hint...))
	case fs.Available < diskWarn:
		found = append(found, warn("%d MiB free for data dir %s: few images will fit", mib, dir).with(details).hint(hint...))
	}
	if share, ok := h.evictionShare(); ok && fs.Total > 0 && float64(fs.Available)*100/float64(fs.Total) < share {
		found = append(found, warn("less than %g%% free for data dir %s: the kubelet will evict pods (kubelet.evictionHard nodefs.available)", share, dir).
			with(details).hint(hint...))
	}
	switch {
	case fs.Inodes == 0:
	case fs.InodesFree < inodesFail:
		found = append(found, fail("%d inodes free for data dir %s, and a node needs %d", fs.InodesFree, dir, inodesFail).hint(hint[0], "df -i "+hostinfo.Quote(existing(dir))))
	case fs.InodesFree < inodesWarn:
		found = append(found, warn("%d inodes free for data dir %s: few images will fit", fs.InodesFree, dir).hint(hint[0], "df -i "+hostinfo.Quote(existing(dir))))
	}
	return orPass(found, "%d MiB free for data dir %s", fs.Available>>20, dir)
}

// evictionShare is the share of free space, in percent, under which the kubelet evicts, where it is given as one.
func (h *host) evictionShare() (float64, bool) {
	s, ok := strings.CutSuffix(h.cfg.Kubelet.EvictionHard["nodefs.available"], "%")
	if !ok {
		return 0, false
	}
	share, err := strconv.ParseFloat(s, 64)
	return share, err == nil
}
