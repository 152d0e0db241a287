package cgroupv2

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// removeTimeout bounds the removal of cgroups where the caller gives no context: killing takes the kernel milliseconds,
// so this is long enough for a loaded machine and short enough for a person.
const removeTimeout = 10 * time.Second

func (h Host) preparedFor(uid int) string {
	return filepath.Join(h.Mount, preparedDir, "user-"+strconv.Itoa(uid))
}

// Prepare makes the delegated directory of an account on a host without systemd: MOUNT/rootlessnode/user-UID, with the
// controllers handed on by each ancestor, and in it the leaf for EnterPrepared; both belong to uid:gid. A controller that
// an ancestor refuses is left out: Detect reports it as missing. Idempotent.
//
// In a container the mount point is the container's own cgroup and no root: its processes, the caller among them, first move
// to a leaf, for only the root of a tree may hold processes and hand on controllers.
//
// Who may call: root. Runs in: parent, before any node.
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

// delegatedFiles is what the delegatee has to own; "" is the directory. No limit of the directory itself is among them.
func delegatedFiles() []string { return []string{"", procsFile, threadsFile, subtreeFile} }

// EnterPrepared moves a process, which is to become one of the account, into the leaf of its prepared directory.
//
// Who may call: root, for the common ancestor is root's.
func EnterPrepared(h Host, uid, pid int) error {
	leaf := filepath.Join(h.preparedFor(uid), enterLeaf)
	if err := movePid(leaf, pid); err != nil {
		return fmt.Errorf("enter prepared cgroup: %w", err)
	}
	return nil
}

// RemovePrepared takes Prepare back. Processes still in the account's directory are killed, so stop its nodes first.
// Removing what is not there is no error.
//
// Who may call: root.
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
	// Nobody is left to use what the root of the tree hands on.
	if others, err := subdirs(h.Mount); err == nil && len(others) == 0 {
		disableAll(h.Mount)
	}
	return nil
}

// PrepareCommands returns what Prepare does as lines for a shell of root, for --dry-run. Pure.
func PrepareCommands(h Host, uid, gid int) []string {
	dir := h.preparedFor(uid)
	top, leaf := filepath.Dir(dir), filepath.Join(dir, enterLeaf)
	evac := filepath.Join(h.Mount, evacLeaf)
	lines := []string{
		"mkdir -p " + quote(leaf),
		"# in a container, whose cgroup is no root of a tree, its processes have to leave it first",
		fmt.Sprintf("if [ -e %s ] && [ -n \"$(cat %s)\" ]; then mkdir -p %s; for p in $(cat %[2]s); do echo $p > %[4]s || true; done; fi",
			quote(filepath.Join(h.Mount, typeFile)), quote(filepath.Join(h.Mount, procsFile)), quote(evac), quote(filepath.Join(evac, procsFile))),
	}
	for _, ancestor := range []string{h.Mount, top} {
		lines = append(lines, fmt.Sprintf("for c in $(cat %s); do echo +$c > %s || true; done",
			quote(filepath.Join(ancestor, controllersFile)), quote(filepath.Join(ancestor, subtreeFile))))
	}
	for _, d := range []string{dir, leaf} {
		line := fmt.Sprintf("chown %d:%d", uid, gid)
		for _, f := range delegatedFiles() {
			line += " " + quote(filepath.Join(d, f))
		}
		lines = append(lines, line)
	}
	return lines
}

// quote makes one word of a shell out of s when it is not one already.
func quote(s string) string {
	for _, r := range s {
		plain := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '/' || r == '.' || r == '-' || r == '_'
		if !plain {
			return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
		}
	}
	return s
}
