package cgroupv2

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// removeTimeout limits the removal of cgroups. The kernel kills processes within milliseconds, so this suffices also on a
// loaded machine.
const removeTimeout = 10 * time.Second

func (h Host) preparedFor(uid int) string {
	return filepath.Join(h.Mount, preparedDir, "user-"+strconv.Itoa(uid))
}

// Prepare creates the delegated directory of an account on a host without systemd: MOUNT/rootlessnode/user-UID, with the
// controllers that its ancestors can delegate, and in it the leaf for OpenPrepared. Both belong to uid:gid. Controllers
// that an ancestor refuses are skipped; Detect reports them as missing. It is idempotent.
//
// In a container the mount point is the container's cgroup and not the root of the tree. Only the root may both contain
// processes and delegate controllers, so the container's processes, including the caller, are first moved to a leaf.
//
// Permissions: root. Runs in: parent, before any node.
func Prepare(h Host, uid, gid int) (dir string, err error) {
	dir = h.preparedFor(uid)
	top := filepath.Dir(dir)
	for _, d := range []string{top, dir, filepath.Join(dir, enterLeaf)} {
		if err := ensureDir(d); err != nil {
			return "", fmt.Errorf("prepare cgroup: %w", err)
		}
	}
	if !isRoot(h.Mount) {
		evacuate(h.Mount, Options{}.withDefaults())
	}
	for _, ancestor := range []string{h.Mount, top} {
		available, err := readList(ancestor, controllersFile)
		if err != nil {
			return "", fmt.Errorf("prepare cgroup: %w", err)
		}
		enable(ancestor, available)
	}
	for _, d := range []string{dir, filepath.Join(dir, enterLeaf)} {
		for _, f := range delegatedFiles() {
			if err := os.Chown(filepath.Join(d, f), uid, gid); err != nil {
				return "", fmt.Errorf("prepare cgroup: %w", err)
			}
		}
	}
	return dir, nil
}

// Prepared reports whether the directory that Prepare creates for an account exists and belongs to the account.
//
// Runs in: parent.
func Prepared(h Host, uid int) bool {
	dir := h.preparedFor(uid)
	for _, f := range []string{"", procsFile, subtreeFile, enterLeaf} {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(dir, f), &st); err != nil || int(st.Uid) != uid {
			return false
		}
	}
	return true
}

// delegatedFiles lists what the account has to own; "" is the directory itself. It contains no limits of the directory.
func delegatedFiles() []string { return []string{"", procsFile, threadsFile, subtreeFile} }

// OpenPrepared opens cgroup.procs of the leaf of an account's prepared directory. The caller then changes to the account
// and moves itself with MoveSelf. This works because the kernel checks the permissions of the process that opened the
// file, and it ensures that the account, which owns the leaf, cannot freeze a process of root in it. A leaf in which no
// process can run, such as a frozen one, is an error.
//
// Permissions: root, because root owns the common ancestor.
func OpenPrepared(h Host, uid int) (*os.File, error) {
	leaf := filepath.Join(h.preparedFor(uid), enterLeaf)
	f, err := openPrepared(leaf)
	if err != nil {
		return nil, fmt.Errorf("enter prepared cgroup: %w", err)
	}
	return f, nil
}

func openPrepared(leaf string) (*os.File, error) {
	// The path cannot be redirected: root owns the directories above, cgroup2 has no links, and only root can mount.
	dir, err := unix.Open(leaf, unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: leaf, Err: err}
	}
	defer func() { _ = unix.Close(dir) }()
	var st unix.Statfs_t
	if err := unix.Fstatfs(dir, &st); err != nil || st.Type != unix.CGROUP2_SUPER_MAGIC {
		return nil, errdefs.Preflight("%s is not a cgroup", leaf)
	}
	for file, usable := range map[string]func(string) bool{
		typeFile:   func(text string) bool { return text == "domain" || text == "domain threaded" },
		freezeFile: func(text string) bool { return text == "0" },
		eventsFile: func(text string) bool { return !slices.Contains(strings.Split(text, "\n"), "frozen 1") }, // includes ancestors
	} {
		text, err := readAt(dir, file)
		if errors.Is(err, os.ErrNotExist) { // before Linux 5.2
			continue
		}
		if err != nil {
			return nil, err
		}
		if !usable(text) {
			return nil, unusable(leaf, file, text)
		}
	}
	fd, err := unix.Openat(dir, procsFile, unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: filepath.Join(leaf, procsFile), Err: err}
	}
	return os.NewFile(uintptr(fd), filepath.Join(leaf, procsFile)), nil
}

func readAt(dir int, name string) (string, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", &os.PathError{Op: "open", Path: name, Err: err}
	}
	f := os.NewFile(uintptr(fd), name)
	b, err := io.ReadAll(f)
	return strings.TrimSpace(string(b)), errors.Join(err, f.Close())
}

// unusable returns the error for a leaf in which no process can run, because of the content of file.
func unusable(leaf, file, text string) error {
	if file == typeFile {
		return errdefs.Preflight("the cgroup %s has type %q", leaf, text).Hint("rmdir "+hostinfo.Quote(leaf)).Do(errdefs.SetUpHost, accountName())
	}
	return errdefs.Preflight("the cgroup %s is frozen", leaf).Hint("echo 0 > " + hostinfo.Quote(filepath.Join(leaf, freezeFile)))
}

// MoveSelf moves the calling process to the cgroup that OpenPrepared opened, and closes procs. Call it after the process
// has changed to the account.
func MoveSelf(procs *os.File) error {
	_, err := procs.WriteString("0")
	if errors.Is(err, os.ErrPermission) {
		err = fmt.Errorf("%w: this kernel lacks the fix of CVE-2021-4197 (Linux 5.16, and stable releases since January 2022)", err)
	}
	return errors.Join(err, procs.Close())
}

// RemovePrepared reverts Prepare. It kills processes that are still in the account's directory, so stop its nodes first. A
// missing directory is not an error.
//
// Permissions: root.
func RemovePrepared(h Host, uid int) error {
	ctx, cancel := context.WithTimeout(context.Background(), removeTimeout)
	defer cancel()
	dir := h.preparedFor(uid)
	if inside(h.SelfDir(), dir) {
		if err := moveSelf(h.Mount); err != nil {
			return fmt.Errorf("remove prepared cgroup: move out of it: %w", err)
		}
	}
	if err := killAndRemove(ctx, dir); err != nil {
		return fmt.Errorf("remove prepared cgroup: %w", err)
	}
	top := filepath.Dir(dir)
	rest, err := subdirs(top)
	if errors.Is(err, os.ErrNotExist) || len(rest) > 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove prepared cgroup: %w", err)
	}
	disableAll(top)
	if err := os.Remove(top); err != nil {
		return fmt.Errorf("remove prepared cgroup: %w", err)
	}
	// No cgroup is left that uses the controllers of the root.
	if others, err := subdirs(h.Mount); err == nil && len(others) == 0 {
		disableAll(h.Mount)
	}
	return nil
}

// PrepareCommands returns shell commands for root that do the same as Prepare, for --dry-run. It is pure.
func PrepareCommands(h Host, uid, gid int) []string {
	dir := h.preparedFor(uid)
	top, leaf := filepath.Dir(dir), filepath.Join(dir, enterLeaf)
	evac := filepath.Join(h.Mount, evacLeaf)
	lines := []string{
		"mkdir -p " + hostinfo.Quote(leaf),
		"# in a container, whose cgroup is not the root of the tree, first move its processes to a leaf",
		fmt.Sprintf("if [ -e %s ] && [ -n \"$(cat %s)\" ]; then mkdir -p %s; for p in $(cat %[2]s); do echo $p > %[4]s || true; done; fi",
			hostinfo.Quote(filepath.Join(h.Mount, typeFile)), hostinfo.Quote(filepath.Join(h.Mount, procsFile)), hostinfo.Quote(evac), hostinfo.Quote(filepath.Join(evac, procsFile))),
	}
	for _, ancestor := range []string{h.Mount, top} {
		lines = append(lines, fmt.Sprintf("for c in $(cat %s); do echo +$c > %s || true; done",
			hostinfo.Quote(filepath.Join(ancestor, controllersFile)), hostinfo.Quote(filepath.Join(ancestor, subtreeFile))))
	}
	for _, d := range []string{dir, leaf} {
		line := fmt.Sprintf("chown %d:%d", uid, gid)
		for _, f := range delegatedFiles() {
			line += " " + hostinfo.Quote(filepath.Join(d, f))
		}
		lines = append(lines, line)
	}
	return lines
}
