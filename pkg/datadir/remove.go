package datadir

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

// Request is what Remove is to remove.
type Request struct {
	// Dir is the data dir, without links.
	Dir string `json:"dir"`
	// TryFirst has Remove look first whether everything can be removed, and remove nothing unless it can.
	TryFirst bool `json:"tryFirst,omitempty"`
}

// Result is what a removal left, as paths of the host.
type Result struct {
	Dir string `json:"dir"`
	// Foreign are entries of the data dir that are not the node's. They are kept.
	Foreign []string `json:"foreign,omitempty"`
	// DirKept is why the empty data dir itself is still there; empty where it is gone or has foreign entries.
	DirKept string `json:"dirKept,omitempty"`
	// Left are the first of the node's files that could not be removed, and MoreLeft is how many there are besides.
	Left     []Left `json:"left,omitempty"`
	MoreLeft int    `json:"moreLeft,omitempty"`
	// Untouched: nothing was removed because not everything can be (Request.TryFirst).
	Untouched bool `json:"untouched,omitempty"`
	// Next is the data dir of an earlier start that the node uses from now on; empty where there is none.
	Next string `json:"next,omitempty"`
	// Fault is why the removal could not begin.
	Fault *errdefs.Report `json:"fault,omitempty"`
}

// Left is one file that could not be removed.
type Left struct {
	Path   string `json:"path"`
	Cause  Cause  `json:"cause"`
	Reason string `json:"reason"`
}

// Cause is the kind of a reason.
type Cause string

// Causes.
const (
	CauseMount     Cause = "mount"
	CauseImmutable Cause = "immutable"
	CauseReadOnly  Cause = "read-only"
	CauseOwner     Cause = "owner"
	CauseOther     Cause = "other"
)

// maxLeft bounds Result.Left.
const maxLeft = 20

// Remove removes from a data dir what layout.Data names, the record last, and then the directory itself if it is empty. It
// keeps everything else, never enters a mount and never follows a link: each step is relative to an open directory. A file that
// cannot be removed is reported, and the rest is removed all the same; the record stays then, so that the removal can be
// repeated. The node must not run.
//
// Files of subordinate ids can only be removed by the root of a user namespace that maps them. Runs in: child (or either,
// without such files).
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

// removeEmpty removes an empty directory, or returns why it stays.
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
		return "the account may not write to " + filepath.Dir(dir)
	}
	return err.Error()
}

// remover removes trees. It holds one directory open at a time, so that the depth of a tree does not matter.
type remover struct {
	res *Result
	// tryOnly: nothing is removed; what cannot be is reported.
	tryOnly bool
}

// level is a directory on the way from the data dir to the one that is open.
type level struct {
	name     string
	dev, ino uint64
	// names are the entries that are not removed yet.
	names []string
	// stays: something in it could not be removed.
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
			if up, err = reopen(fd, above); err != nil { // moved away meanwhile: nothing more is known of what is there
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

// enter removes the entry name of the directory dir, unless it is a directory itself: then it opens it.
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
			return 0, false // it was empty, and only its content is protected
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

// reopen opens the directory above fd, which must still be the one that it was.
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

// readNames returns the names in an open directory.
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

// isMount reports whether the entry name of the directory dir is a mount of its own.
func isMount(dir int, name string) bool {
	fd, err := unix.Openat2(dir, name, &unix.OpenHow{
		Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_XDEV | unix.RESOLVE_BENEATH,
	})
	if err == nil {
		_ = unix.Close(fd)
	}
	return errors.Is(err, unix.EXDEV)
}

// left reports the entry name of the open directory dir, or the directory itself where name is empty, at the end of stack.
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
		return // the directory was reported for another entry of it
	}
	r.res.Left = append(r.res.Left, l)
}

// explain finds out why the kernel refuses to remove the entry name of the directory dir.
func (l *Left) explain(dir int, name string) {
	const flags = unix.STATX_ATTR_IMMUTABLE | unix.STATX_ATTR_APPEND
	var st unix.Statx_t
	look := func(name string, at int) bool {
		return unix.Statx(dir, name, at|unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS, &st) == nil
	}
	if name != "" && look(name, 0) {
		switch {
		case st.Attributes&flags != 0:
			l.Cause, l.Reason = CauseImmutable, attributeText(st.Attributes)
			return
		case st.Mode&unix.S_IFMT == unix.S_IFDIR && foreignOwner(st):
			l.Cause, l.Reason = CauseOwner, "its owner is not among the ids of the account"
			return
		}
	}
	if !look("", unix.AT_EMPTY_PATH) {
		return
	}
	switch {
	case st.Attributes&flags != 0:
		l.Cause, l.Reason = CauseImmutable, attributeText(st.Attributes)
	case foreignOwner(st):
		l.Cause, l.Reason = CauseOwner, "its owner is not among the ids of the account"
	default:
		return
	}
	if name != "" {
		l.Path = filepath.Dir(l.Path) // the directory is at fault
	}
}

// foreignOwner reports whether a file belongs to an id that this user namespace does not map: it shows as the overflow id
// (user_namespaces(7)). An image's nobody has the same number, but nothing keeps the namespace's root from removing its files.
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

// Err is nil unless some of the node's files are left; else every one of them is named with its reason and, as a hint, with what
// root has to type. again is the command that repeats the removal.
func (res *Result) Err(again string) error {
	if len(res.Left) == 0 {
		return nil
	}
	first, head := "remove data dir %s: not everything of the node could be removed", "# as root:\n"
	if res.Untouched {
		first, head = "remove data dir %s: nothing was removed, because not everything can be", "# or, to remove the data, as root:\n"
	}
	faults := []error{fmt.Errorf(first, res.Dir)}
	for _, l := range res.Left {
		faults = append(faults, fmt.Errorf("%s: %s", l.Path, l.Reason))
	}
	if res.MoreLeft > 0 {
		faults = append(faults, fmt.Errorf("and %d more", res.MoreLeft))
	}
	return errdefs.WithHint(errors.Join(faults...), head+strings.Join(res.fixes(), "\n")+"\n# then again:\n"+again)
}

// fixes are commands for root, each once. Those that unmount come first: rm enters a mount of the same file system.
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

// topOf is the entry of the data dir that path is below.
func (res *Result) topOf(path string) string {
	rel, err := filepath.Rel(res.Dir, path)
	if err != nil || rel == "." {
		return path
	}
	top, _, _ := strings.Cut(rel, string(filepath.Separator))
	return filepath.Join(res.Dir, top)
}

// RootRemoves is the command by which root removes paths without entering a mount.
func RootRemoves(paths ...string) string {
	quoted := make([]string, len(paths))
	for i, p := range paths {
		quoted[i] = hostinfo.Quote(p)
	}
	return "rm -rf --one-file-system -- " + strings.Join(quoted, " ")
}

// Contents returns the paths in a data dir that Remove would remove, and the foreign ones. likely reports whether the names of
// the former are such that hardly any other program uses them.
func Contents(dir string) (known, foreign []string, likely bool, err error) {
	f, err := look(layout.NewData(dir))
	for _, list := range []*[]string{&f.known, &f.foreign} {
		for i, name := range *list {
			(*list)[i] = filepath.Join(dir, name)
		}
	}
	return f.known, f.foreign, f.characteristic, err
}
