package preflight

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"unicode"

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
		found = append(found, fail("data dir %s: %s is not writable by uid %d", dir, at, h.in.UID).hint(h.own(at, dir)...))
	}
	found = append(found, accessibleToOthers(h, dir)...)
	found = append(found, mountFlags(h, dir, on.Flags)...)
	return orPass(found, "data dir %s", dir)
}

// own returns the commands that let the account create dir, of which only the part at exists. A directory of the account's home must
// belong to the account, for example because a program that ran as root has created it.
func (h *host) own(at, dir string) []string {
	a, ok, _ := h.account()
	if home := strings.TrimSuffix(a.Home, "/"); ok && home != "" && (at == h.path(home) || strings.HasPrefix(at, h.path(home)+"/")) {
		return []string{"# make the account its owner:", asRoot(fmt.Sprintf("chown %d:%d %s", a.UID, a.GID, hostinfo.Quote(at)))}
	}
	return []string{
		"# make the account its owner, or choose another directory with dataDir:",
		asRoot(fmt.Sprintf("install -d -m 0700 -o %d %s", h.in.UID, hostinfo.Quote(dir))),
	}
}

// checkHome checks the directory with the registry of the account's data dirs.
func checkHome(_ context.Context, h *host) []Finding {
	base := h.env("XDG_DATA_HOME")
	if home := h.env("HOME"); !filepath.IsAbs(base) && home != "" {
		base = filepath.Join(home, ".local", "share")
	}
	if base == "" {
		return []Finding{pass("not checked: neither HOME nor XDG_DATA_HOME is set")} // then there is no default data dir either
	}
	dir := layout.RegistryDir(base)
	at := existing(dir)
	if err := unix.Access(at, unix.W_OK|unix.X_OK); err != nil {
		return []Finding{fail("%s cannot be created: %s: %v", dir, at, err).hint(h.own(at, dir)...)}
	}
	return []Finding{pass("the account's nodes are listed in %s", dir)}
}

// checkDataPath checks for characters that programs which get the path do not accept.
func checkDataPath(_ context.Context, h *host) []Finding {
	dir := h.in.Data.Dir
	if strings.Contains(dir, ":") {
		return []Finding{fail("the path of data dir %s has a colon, but KUBECONFIG is a list of paths separated by colons", dir).hint(
			"# choose another directory: dataDir: " + strings.ReplaceAll(dir, ":", "-"))}
	}
	if strings.ContainsFunc(dir, unicode.IsControl) {
		return []Finding{fail("the path of data dir %q has control characters", dir).hint("# choose another directory with dataDir")}
	}
	return []Finding{pass("all programs accept the path of data dir %s", dir)}
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
