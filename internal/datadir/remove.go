package datadir

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// Request is the input of Remove.
type Request struct {
	// Dir is the data dir, without symbolic links.
	Dir string `json:"dir"`
	// TryFirst makes Remove check first whether all files can be removed, and remove nothing if one cannot.
	TryFirst bool `json:"tryFirst,omitempty"`
}

// Result is the result of a removal. Its paths are paths on the host.
type Result struct {
	Dir string `json:"dir"`
	// Foreign are the entries of the data dir that do not belong to the node. They are kept.
	Foreign []string `json:"foreign,omitempty"`
	// DirKept is the reason why the empty data dir could not be removed; empty if it was removed or has foreign entries.
	DirKept string `json:"dirKept,omitempty"`
	// Left are the first of the node's files that could not be removed, and MoreLeft is the number of further ones.
	Left     []Left `json:"left,omitempty"`
	MoreLeft int    `json:"moreLeft,omitempty"`
	// Untouched is set if nothing was removed because not all files can be removed (Request.TryFirst).
	Untouched bool `json:"untouched,omitempty"`
	// Next is the data dir of an earlier start that the node uses now; empty if there is none.
	Next string `json:"next,omitempty"`
	// Fault is the error because of which the removal did not begin.
	Fault *errdefs.Report `json:"fault,omitempty"`
}

// Left is a file that could not be removed.
type Left struct {
	Path   string `json:"path"`
	Cause  Cause  `json:"cause"`
	Reason string `json:"reason"`
}

// Cause is the kind of reason why a file could not be removed.
type Cause string

// Causes.
const (
	CauseMount     Cause = "mount"
	CauseImmutable Cause = "immutable"
	CauseReadOnly  Cause = "read-only"
	CauseOwner     Cause = "owner"
	CauseOther     Cause = "other"
)

// maxLeft is the maximum length of Result.Left.
const maxLeft = 20

// Remove removes the entries of layout.Data from a data dir, the record last, and then the directory itself if it is empty. It keeps all
// other entries, does not enter mounts and does not follow symbolic links. It reports files that cannot be removed and continues with the
// others; in this case it keeps the record, so that the removal can be repeated. The record has Deleting from the first removed file on. The node must
// be stopped.
//
// Files of subordinate ids can be removed only by root in a user namespace that maps these ids.
//
// Runs in: child (or either, without such files).
func Remove(req Request) (*Result, error) {
	res := &Result{Dir: req.Dir}
	root, err := unix.Openat2(unix.AT_FDCWD, req.Dir, &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if errors.Is(err, unix.ENOENT) {
		return res, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", req.Dir, err)
	}
	defer func() { _ = unix.Close(root) }()
	names, err := readNames(root)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", req.Dir, err)
	}
	d := layout.NewData(req.Dir)
	var known, records []string
	for _, name := range names {
		switch of := entryOf(name, d); of {
		case "":
			path := filepath.Join(req.Dir, name)
			if isMount(root, name) {
				path += " (a mount)"
			}
			res.Foreign = append(res.Foreign, path)
		case filepath.Base(d.Record()):
			records = append(records, name)
		default:
			known = append(known, name)
		}
	}
	slices.Sort(res.Foreign)
	r := &remover{res: res}
	if req.TryFirst {
		r.tryOnly = true
		r.remove(root, known)
		if len(res.Left) > 0 {
			res.Untouched = true
			return res, nil
		}
		r.tryOnly = false
	}
	markDeleting(d)
	r.remove(root, known)
	if len(res.Left) > 0 {
		return res, nil
	}
	r.remove(root, records)
	if len(res.Left) == 0 && len(res.Foreign) == 0 {
		res.DirKept = removeEmpty(req.Dir)
	}
	return res, nil
}

// markDeleting records that the data is incomplete from now on. Errors are ignored, because the mark only helps a start after an interrupted
// removal; the disk may be full, or the record may be missing.
func markDeleting(d layout.Data) {
	was, _, err := readRecord(d)
	if err != nil {
		return
	}
	now := *was
	now.Deleting = true
	_ = writeRecord(d, now, was)
}

// removeEmpty removes an empty directory. It returns the reason if that is not possible.
func removeEmpty(dir string) string {
	parent, err := unix.Openat2(unix.AT_FDCWD, filepath.Dir(dir), &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if err == nil {
		defer func() { _ = unix.Close(parent) }()
		err = unix.Unlinkat(parent, filepath.Base(dir), unix.AT_REMOVEDIR)
	}
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return ""
	case errors.Is(err, unix.EBUSY):
		return "it is a mount"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return "the account has no write permission for " + filepath.Dir(dir)
	}
	return err.Error()
}

// remover removes directory trees. It has only one directory open at a time, so that the depth of a tree is not limited.
type remover struct {
	res *Result
	// tryOnly is set to report the files that cannot be removed without removing any.
	tryOnly bool
}

// level is a directory on the path from the data dir to the open directory.
type level struct {
	name     string
	dev, ino uint64
	// names are the entries that are not removed yet.
	names []string
	// stays is set if an entry could not be removed.
	stays bool
}

// remove removes the entries names of the open directory root.
func (r *remover) remove(root int, names []string) {
	top, err := newLevel(root, r.res.Dir)
	if err != nil {
		r.left([]*level{{name: r.res.Dir}}, "", root, err)
		return
	}
	top.names = slices.Clone(names)
	stack, fd := []*level{top}, root
	defer func() {
		if fd != root {
			_ = unix.Close(fd)
		}
	}()
	for {
		at := stack[len(stack)-1]
		if n := len(at.names); n > 0 {
			name := at.names[n-1]
			at.names = at.names[:n-1]
			if child, ok := r.enter(stack, fd, name); ok {
				var below *level
				if below, err = newLevel(child, name); err == nil {
					below.names, err = readNames(child)
				}
				if err != nil {
					r.left(stack, name, fd, err)
					at.stays = true
					_ = unix.Close(child)
					continue
				}
				if fd != root {
					_ = unix.Close(fd)
				}
				fd, stack = child, append(stack, below)
			}
			continue
		}
		if len(stack) == 1 {
			return
		}
		above := stack[len(stack)-2]
		up := root
		if len(stack) > 2 {
			if up, err = reopen(fd, above); err != nil { // the directory was moved, so the position in the tree is unknown
				r.left(stack, "", fd, err)
				return
			}
		}
		_ = unix.Close(fd)
		fd, stack = up, stack[:len(stack)-1]
		switch {
		case at.stays:
			above.stays = true
		case r.tryOnly:
		default:
			if err := unix.Unlinkat(fd, at.name, unix.AT_REMOVEDIR); err != nil && !errors.Is(err, unix.ENOENT) {
				r.left(stack, at.name, fd, err)
				above.stays = true
			}
		}
	}
}

// enter removes the entry name of the directory dir, or opens it if it is a directory.
func (r *remover) enter(stack []*level, dir int, name string) (child int, ok bool) {
	var st unix.Stat_t
	err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	isDir := err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR
	if err == nil && !isDir {
		switch {
		case !r.tryOnly:
			err = unix.Unlinkat(dir, name, 0)
		case isMount(dir, name):
			err = unix.EBUSY
		}
	}
	if err == nil && isDir {
		child, err = unix.Openat2(dir, name, &unix.OpenHow{
			Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC,
			Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
		})
		if err == nil && r.tryOnly {
			err = unix.Faccessat(child, ".", unix.R_OK|unix.W_OK|unix.X_OK, unix.AT_EACCESS)
			if err != nil {
				_ = unix.Close(child)
			}
		}
		if errors.Is(err, unix.EACCES) && !r.tryOnly && unix.Unlinkat(dir, name, unix.AT_REMOVEDIR) == nil {
			return 0, false // an empty directory that is not readable
		}
		ok = err == nil
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		r.left(stack, name, dir, err)
		stack[len(stack)-1].stays = true
	}
	return child, ok
}

func newLevel(fd int, name string) (*level, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	return &level{name: name, dev: st.Dev, ino: st.Ino}, nil
}

// reopen opens the parent directory of fd, which must still be above.
func reopen(fd int, above *level) (int, error) {
	up, err := unix.Openat(fd, "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	is, err := newLevel(up, above.name)
	if err == nil && (is.dev != above.dev || is.ino != above.ino) {
		err = errors.New("the directory was moved during the removal")
	}
	if err != nil {
		_ = unix.Close(up)
		return -1, err
	}
	return up, nil
}

// readNames returns the names of the entries of an open directory.
func readNames(fd int) ([]string, error) {
	if _, err := unix.Seek(fd, 0, 0); err != nil {
		return nil, err
	}
	var names []string
	buf := make([]byte, 32<<10)
	for {
		n, err := unix.ReadDirent(fd, buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if n <= 0 {
			return names, nil
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
}

// isMount reports whether the entry name of the directory dir is a mount point.
func isMount(dir int, name string) bool {
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_BENEATH,
	})
	if err == nil {
		_ = unix.Close(fd)
	}
	return errors.Is(err, unix.EXDEV)
}

// left adds the entry name of the open directory dir, which is the last one of stack, to the result. If name is empty, it adds the
// directory itself.
func (r *remover) left(stack []*level, name string, dir int, err error) {
	if len(r.res.Left) >= maxLeft {
		r.res.MoreLeft++
		return
	}
	parts := make([]string, 0, len(stack)+1)
	for _, l := range stack {
		parts = append(parts, l.name)
	}
	path := filepath.Join(append(parts, name)...)
	l := Left{Path: path, Cause: CauseOther, Reason: err.Error()}
	switch {
	case name != "" && isMount(dir, name):
		l.Cause, l.Reason = CauseMount, "it is a mount"
	case errors.Is(err, unix.EROFS):
		l.Cause, l.Reason = CauseReadOnly, "read-only file system"
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), errors.Is(err, unix.EOVERFLOW):
		l.explain(dir, name)
	}
	if l.Path == filepath.Dir(path) && slices.ContainsFunc(r.res.Left, func(o Left) bool { return o.Path == l.Path }) {
		return // the directory was reported already for another entry
	}
	r.res.Left = append(r.res.Left, l)
}

// explain sets the reason why the kernel refuses to remove the entry name of the directory dir.
func (l *Left) explain(dir int, name string) {
	const flags = unix.STATX_ATTR_IMMUTABLE | unix.STATX_ATTR_APPEND
	var st unix.Statx_t
	stat := func(name string, at int) bool {
		return unix.Statx(dir, name, at|unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS, &st) == nil
	}
	if name != "" && stat(name, 0) {
		switch {
		case st.Attributes&flags != 0:
			l.Cause, l.Reason = CauseImmutable, attributeText(st.Attributes)
			return
		case st.Mode&unix.S_IFMT == unix.S_IFDIR && foreignOwner(st):
			l.Cause, l.Reason = CauseOwner, "its owner is not one of the account's ids"
			return
		}
	}
	if !stat("", unix.AT_EMPTY_PATH) {
		return
	}
	switch {
	case st.Attributes&flags != 0:
		l.Cause, l.Reason = CauseImmutable, attributeText(st.Attributes)
	case foreignOwner(st):
		l.Cause, l.Reason = CauseOwner, "its owner is not one of the account's ids"
	default:
		return
	}
	if name != "" {
		l.Path = filepath.Dir(l.Path) // the directory is the cause
	}
}

// foreignOwner reports whether a file belongs to an id without a mapping in this user namespace; such ids appear as the overflow id
// (user_namespaces(7)). The user nobody of an image has the same id, but root of the namespace can remove its files, so that no error
// leads here.
func foreignOwner(st unix.Statx_t) bool {
	const overflow = 65534
	return st.Uid == overflow || st.Gid == overflow
}

func attributeText(attributes uint64) string {
	if attributes&unix.STATX_ATTR_IMMUTABLE != 0 {
		return "it has the immutable flag (chattr +i)"
	}
	return "it has the append-only flag (chattr +a)"
}

// Err returns nil if all of the node's files were removed. Otherwise it returns an error with the remaining files and the reasons, and
// commands for root as a hint.
func (res *Result) Err() error {
	if len(res.Left) == 0 {
		return nil
	}
	first, head := "remove data dir %s: some files of the node could not be removed", "# as root:"
	if res.Untouched {
		first, head = "remove data dir %s: nothing was removed, because some files cannot be removed", "# or, to remove the data, as root:"
	}
	faults := []error{fmt.Errorf(first, res.Dir)}
	for _, l := range res.Left {
		faults = append(faults, fmt.Errorf("%s: %s", l.Path, l.Reason))
	}
	if res.MoreLeft > 0 {
		faults = append(faults, fmt.Errorf("and %d more", res.MoreLeft))
	}
	return errdefs.WithSteps(errors.Join(faults...), errdefs.Text(head).Text(res.fixes()...).Text("# then again:").Do(errdefs.DeleteData))
}

// fixes returns commands for root without duplicates. Unmounts come first, because rm enters mounts of the same file system.
func (res *Result) fixes() []string {
	var commands []string
	all := slices.Clone(res.Left)
	slices.SortStableFunc(all, func(a, b Left) int {
		switch {
		case a.Cause == CauseMount && b.Cause != CauseMount:
			return -1
		case a.Cause != CauseMount && b.Cause == CauseMount:
			return 1
		}
		return 0
	})
	for _, l := range all {
		var command string
		switch l.Cause {
		case CauseMount:
			command = "umount " + hostinfo.Quote(l.Path)
		case CauseImmutable:
			command = "chattr -i -a " + hostinfo.Quote(l.Path)
		case CauseReadOnly:
			command = "mount -o remount,rw \"$(findmnt -n -o TARGET -T " + hostinfo.Quote(l.Path) + ")\""
		default:
			command = RootRemoves(res.topOf(l.Path))
		}
		if !slices.Contains(commands, command) {
			commands = append(commands, command)
		}
	}
	return commands
}

// topOf returns the entry of the data dir that contains path.
func (res *Result) topOf(path string) string {
	rel, err := filepath.Rel(res.Dir, path)
	if err != nil || rel == "." {
		return path
	}
	top, _, _ := strings.Cut(rel, string(filepath.Separator))
	return filepath.Join(res.Dir, top)
}

// RootRemoves returns the command with which root removes paths without entering other file systems.
func RootRemoves(paths ...string) string {
	quoted := make([]string, len(paths))
	for i, p := range paths {
		quoted[i] = hostinfo.Quote(p)
	}
	return "rm -rf --one-file-system -- " + strings.Join(quoted, " ")
}

// Contents returns the paths in a data dir that Remove would remove, and the foreign ones. likely is set if a name of the former is
// rarely used by other programs, so that the directory is likely to be a data dir.
func Contents(dir string) (known, foreign []string, likely bool, err error) {
	f, err := list(layout.NewData(dir))
	for _, list := range []*[]string{&f.known, &f.foreign} {
		for i, name := range *list {
			(*list)[i] = filepath.Join(dir, name)
		}
	}
	return f.known, f.foreign, f.characteristic, err
}
