package datadir

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// dataOf creates a data dir with all entries, and a directory outside of it.
func dataOf(t *testing.T) (d layout.Data, outside string) {
	t.Helper()
	root, err := filepath.EvalSymlinks(t.TempDir())
	assert.NilError(t, err)
	d, outside = layout.NewData(filepath.Join(root, "data")), filepath.Join(root, "outside")
	assert.NilError(t, Claim(d, "one", ownIDs(IDRange{100000, 65536}), "dev"))
	for _, name := range d.Entries() {
		if filepath.Ext(name) == "" && name != "kubeconfig" {
			write(t, filepath.Join(d.Dir, name, "a", "b", "file"))
			assert.NilError(t, os.Symlink("/etc/passwd", filepath.Join(d.Dir, name, "link")))
		} else if name != filepath.Base(d.Record()) {
			write(t, filepath.Join(d.Dir, name))
		}
	}
	write(t, filepath.Join(d.Dir, ".ports.json.4711"))
	write(t, filepath.Join(outside, "keep"))
	return d, outside
}

func write(t *testing.T, path string) {
	t.Helper()
	assert.NilError(t, os.MkdirAll(filepath.Dir(path), 0o700))
	assert.NilError(t, os.WriteFile(path, []byte(path), 0o600))
}

// namesIn returns the names of the entries of a directory, or nil if it does not exist.
func namesIn(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		assert.ErrorIs(t, err, fs.ErrNotExist)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func removeAll(t *testing.T, d layout.Data) *Result {
	t.Helper()
	res, err := Remove(Request{Dir: d.Dir})
	assert.NilError(t, err)
	return res
}

func TestRemoveEverything(t *testing.T) {
	t.Parallel()
	d, _ := dataOf(t)
	assert.DeepEqual(t, removeAll(t, d), &Result{Dir: d.Dir})
	_, err := os.Lstat(d.Dir)
	assert.ErrorIs(t, err, fs.ErrNotExist)
	assert.DeepEqual(t, removeAll(t, d), &Result{Dir: d.Dir})
}

func TestRemoveKeepsForeignFiles(t *testing.T) {
	t.Parallel()
	d, outside := dataOf(t)
	for _, name := range []string{"precious.txt", "sub/f", ".hidden", "kubelet.old/x", ".ports.json.x", ".other.json.12"} {
		write(t, filepath.Join(d.Dir, name))
	}
	assert.NilError(t, os.Symlink(outside, filepath.Join(d.Dir, "linked")))
	assert.NilError(t, os.Remove(d.LastExit()))
	assert.NilError(t, os.Symlink(filepath.Join(outside, "keep"), d.LastExit()))
	assert.NilError(t, os.Symlink(outside, filepath.Join(d.Dir, "kubelet", "linked")))
	res := removeAll(t, d)
	foreign := []string{".hidden", ".other.json.12", ".ports.json.x", "kubelet.old", "linked", "precious.txt", "sub"}
	assert.DeepEqual(t, namesIn(t, d.Dir), foreign)
	for i := range foreign {
		foreign[i] = filepath.Join(d.Dir, foreign[i])
	}
	assert.DeepEqual(t, res, &Result{Dir: d.Dir, Foreign: foreign})
	assert.DeepEqual(t, namesIn(t, outside), []string{"keep"})
	assert.NilError(t, res.Err())
}

// TestRemoveDoesNotFollowTheDataDir checks that Remove refuses a symbolic link that replaces the data dir after the caller has resolved
// its path.
func TestRemoveDoesNotFollowTheDataDir(t *testing.T) {
	t.Parallel()
	d, outside := dataOf(t)
	link := filepath.Join(filepath.Dir(d.Dir), "link")
	assert.NilError(t, os.Symlink(d.Dir, link))
	for _, dir := range []string{link, filepath.Join(link, "kubelet")} {
		_, err := Remove(Request{Dir: dir})
		assert.ErrorIs(t, err, unix.ELOOP)
	}
	assert.Assert(t, len(namesIn(t, d.Dir)) > len(d.Entries()))
	assert.DeepEqual(t, namesIn(t, outside), []string{"keep"})
}

// TestRemoveDeepTree removes a tree with more levels than descriptors and with paths longer than PATH_MAX, which a pod can create.
func TestRemoveDeepTree(t *testing.T) {
	t.Parallel()
	d, _ := dataOf(t)
	const depth = 3000
	fd, err := unix.Open(filepath.Join(d.Dir, "kubelet"), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	assert.NilError(t, err)
	for range depth {
		assert.NilError(t, unix.Mkdirat(fd, "deeper", 0o700))
		below, err := unix.Openat(fd, "deeper", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		assert.NilError(t, err)
		assert.NilError(t, unix.Close(fd))
		fd = below
	}
	assert.NilError(t, unix.Close(fd))
	assert.DeepEqual(t, removeAll(t, d), &Result{Dir: d.Dir})
}

// TestRemoveContinues checks that files that cannot be removed are reported with the reason, that the others are removed, and that the
// record stays until a repetition succeeds.
func TestRemoveContinues(t *testing.T) {
	t.Parallel()
	testutil.Require(t, testutil.OrdinaryUser)
	d, _ := dataOf(t)
	locked := filepath.Join(d.Dir, "containerd", "a")
	assert.NilError(t, os.Chmod(locked, 0o500))
	res := removeAll(t, d)
	assert.DeepEqual(t, res, &Result{Dir: d.Dir, Left: []Left{
		{Path: filepath.Join(locked, "b"), Cause: CauseOther, Reason: "permission denied"},
	}})
	assert.DeepEqual(t, namesIn(t, d.Dir), []string{"containerd", "rootlessnode.json"})
	err := res.Err()
	assert.ErrorContains(t, err, filepath.Join(locked, "b")+": permission denied")
	assert.Equal(t, hints(err), "# as root:\nrm -rf --one-file-system -- "+filepath.Join(d.Dir, "containerd")+"\n# then again:\ndelete the data of the node")
	assert.NilError(t, os.Chmod(locked, 0o700))
	assert.DeepEqual(t, removeAll(t, d), &Result{Dir: d.Dir})
}

// TestRemoveTriesFirst checks that nothing is removed if the ids have changed and not all files can be removed.
func TestRemoveTriesFirst(t *testing.T) {
	t.Parallel()
	testutil.Require(t, testutil.OrdinaryUser)
	d, _ := dataOf(t)
	before := namesIn(t, d.Dir)
	locked := filepath.Join(d.Dir, "containerd", "a")
	assert.NilError(t, os.Chmod(locked, 0o500))
	res, err := Remove(Request{Dir: d.Dir, TryFirst: true})
	assert.NilError(t, err)
	assert.Assert(t, res.Untouched)
	assert.ErrorContains(t, res.Err(), "nothing was removed")
	assert.DeepEqual(t, namesIn(t, d.Dir), before)
	assert.NilError(t, os.Chmod(locked, 0o700))
	res, err = Remove(Request{Dir: d.Dir, TryFirst: true})
	assert.NilError(t, err)
	assert.DeepEqual(t, res, &Result{Dir: d.Dir})
}

// TestRemoveKeepsTheDirectory checks that a data dir is emptied but not removed if the account cannot write to its parent directory.
func TestRemoveKeepsTheDirectory(t *testing.T) {
	t.Parallel()
	testutil.Require(t, testutil.OrdinaryUser)
	d, _ := dataOf(t)
	parent := filepath.Dir(d.Dir)
	assert.NilError(t, os.Chmod(parent, 0o500))
	t.Cleanup(func() { assert.Check(t, os.Chmod(parent, 0o700)) })
	assert.DeepEqual(t, removeAll(t, d), &Result{Dir: d.Dir, DirKept: "the account has no write permission for " + parent})
	assert.Assert(t, cmp.Len(namesIn(t, d.Dir), 0))
}

// envInside makes a test run its part inside of a namespace, with this data dir.
const envInside = "ROOTLESSNODE_TEST_DATADIR"

// inside runs the test again as the root of a user and mount namespace that maps uid only.
func inside(t *testing.T, uid int, d layout.Data) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.count=1", "-test.v")
	cmd.Env = append(os.Environ(), envInside+"="+d.Dir, testutil.QuickExit)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}},
		Credential:  &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: true},
		Pdeathsig:   syscall.SIGKILL,
	}
	if uid == os.Getuid() {
		cmd.SysProcAttr.GidMappings[0].HostID = os.Getgid()
	}
	out, err := cmd.CombinedOutput()
	assert.NilError(t, err, "%s", out)
	assert.Assert(t, !strings.Contains(string(out), "--- SKIP"), "%s", out)
}

// TestRemoveCrossesNoMount checks that mounted directories and files are not entered or removed, even if they are on the same file
// system, and that a repetition without the mounts succeeds.
func TestRemoveCrossesNoMount(t *testing.T) {
	if dir := os.Getenv(envInside); dir != "" {
		mountsAreKept(t, layout.NewData(dir))
		return
	}
	t.Parallel()
	testutil.Require(t, testutil.UserNS)
	d, outside := dataOf(t)
	for _, dir := range []string{"bm", "kubelet/pods/x", "etcd"} {
		assert.NilError(t, os.MkdirAll(filepath.Join(d.Dir, dir), 0o700))
	}
	inside(t, os.Getuid(), d)
	assert.DeepEqual(t, namesIn(t, outside), []string{"keep"})
	assert.DeepEqual(t, removeAll(t, d), &Result{Dir: d.Dir, Foreign: []string{filepath.Join(d.Dir, "bm")}})
	assert.DeepEqual(t, namesIn(t, d.Dir), []string{"bm"})
}

func mountsAreKept(t *testing.T, d layout.Data) {
	t.Helper()
	outside := filepath.Join(filepath.Dir(d.Dir), "outside")
	bind := func(from, to string) {
		t.Helper()
		assert.NilError(t, unix.Mount(from, filepath.Join(d.Dir, to), "", unix.MS_BIND|unix.MS_REC, ""))
	}
	bind(outside, "bm")
	bind(outside, "kubelet/pods/x")
	bind(outside, "etcd")
	bind(filepath.Join(outside, "keep"), "containerd/a/b/file")
	for _, req := range []Request{{Dir: d.Dir, TryFirst: true}, {Dir: d.Dir}, {Dir: d.Dir}} {
		res, err := Remove(req)
		assert.NilError(t, err)
		assert.DeepEqual(t, res.Foreign, []string{filepath.Join(d.Dir, "bm") + " (a mount)"})
		var left []string
		for _, l := range res.Left {
			assert.Equal(t, l.Cause, CauseMount, "%+v", l)
			left = append(left, strings.TrimPrefix(l.Path, d.Dir+"/"))
		}
		slices.Sort(left)
		assert.DeepEqual(t, left, []string{"containerd/a/b/file", "etcd", "kubelet/pods/x"})
		assert.Assert(t, cmp.Contains(hints(res.Err()), "umount "+filepath.Join(d.Dir, "kubelet/pods/x")+"\n"))
		if req.TryFirst {
			assert.Assert(t, res.Untouched && len(namesIn(t, d.Dir)) > len(d.Entries()))
		}
	}
	assert.DeepEqual(t, namesIn(t, d.Dir), []string{"bm", "containerd", "etcd", "kubelet", "rootlessnode.json"})
	assert.DeepEqual(t, namesIn(t, filepath.Join(d.Dir, "kubelet")), []string{"pods"})
	assert.DeepEqual(t, namesIn(t, filepath.Join(d.Dir, "containerd", "a")), []string{"b"})
	assert.DeepEqual(t, namesIn(t, outside), []string{"keep"})
}

// TestRemoveOtherOwners checks that directories of ids without a mapping in the namespace are reported.
func TestRemoveOtherOwners(t *testing.T) {
	const account, lost = 23456, 231072
	if dir := os.Getenv(envInside); dir != "" {
		ownersAreNamed(t, layout.NewData(dir))
		return
	}
	t.Parallel()
	testutil.Require(t, testutil.Root, testutil.UserNS)
	d, _ := dataOf(t)
	root := filepath.Dir(d.Dir)
	for _, dir := range []string{root, filepath.Dir(root)} { // the account needs access
		assert.NilError(t, os.Chmod(dir, 0o755))
	}
	assert.NilError(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, account, account)
	}))
	write(t, filepath.Join(d.Dir, "containerd/theirs/file"))
	write(t, filepath.Join(d.Dir, "kubelet/file"))
	assert.NilError(t, os.Mkdir(filepath.Join(d.Dir, "kubelet/empty"), 0o700))
	for _, p := range []string{"containerd/theirs/file", "containerd/theirs", "kubelet/file", "kubelet/empty"} {
		assert.NilError(t, os.Lchown(filepath.Join(d.Dir, p), lost, lost))
	}
	inside(t, account, d)
	assert.DeepEqual(t, namesIn(t, d.Dir), []string{"containerd", "rootlessnode.json"})
	assert.NilError(t, os.RemoveAll(filepath.Join(d.Dir, "containerd")))
	assert.DeepEqual(t, removeAll(t, d), &Result{Dir: d.Dir})
}

func ownersAreNamed(t *testing.T, d layout.Data) {
	t.Helper()
	theirs := Left{filepath.Join(d.Dir, "containerd/theirs"), CauseOwner, "its owner is not one of the account's ids"}
	res, err := Remove(Request{Dir: d.Dir, TryFirst: true})
	assert.NilError(t, err)
	assert.Assert(t, res.Untouched && slices.Contains(res.Left, theirs), "%+v", res)
	res, err = Remove(Request{Dir: d.Dir})
	assert.NilError(t, err)
	assert.DeepEqual(t, res.Left, []Left{theirs})
	assert.Assert(t, cmp.Contains(hints(res.Err()), "rm -rf --one-file-system -- "+filepath.Join(d.Dir, "containerd")))
}

// TestRemoveMarksTheRecord checks that the record of an interrupted removal has Deleting, and that one that only tries has not.
func TestRemoveMarksTheRecord(t *testing.T) {
	t.Parallel()
	d := layout.NewData(t.TempDir())
	assert.NilError(t, Claim(d, "one", ownIDs(IDRange{100000, 65536}), "dev"))
	write(t, filepath.Join(d.Dir, "etcd/member/file"))
	closed := filepath.Join(d.Dir, "etcd/member")
	assert.NilError(t, os.Chmod(closed, 0o500))       // root can remove the file
	t.Cleanup(func() { _ = os.Chmod(closed, 0o700) }) // it is gone for root
	for _, tryFirst := range []bool{true, false} {
		res, err := Remove(Request{Dir: d.Dir, TryFirst: tryFirst})
		assert.NilError(t, err)
		r, err := ReadRecord(d, os.Getuid())
		if len(res.Left) == 0 {
			assert.ErrorIs(t, err, os.ErrNotExist)
			return
		}
		assert.NilError(t, err)
		assert.Equal(t, r.Deleting, !tryFirst)
	}
}

// TestRemoveImmutable checks that the immutable flag is reported, and once for a directory.
func TestRemoveImmutable(t *testing.T) {
	t.Parallel()
	testutil.Require(t, testutil.Root, immutable)
	d, _ := dataOf(t)
	file, dir := filepath.Join(d.Dir, "etcd/a/b/file"), filepath.Join(d.Dir, "kubelet/a/b")
	write(t, filepath.Join(dir, "second"))
	for _, path := range []string{file, dir} {
		assert.NilError(t, setFlag(path, true))
		t.Cleanup(func() { _ = setFlag(path, false) }) // the file exists only if the test failed
	}
	res := removeAll(t, d)
	const reason = "it has the immutable flag (chattr +i)"
	slices.SortFunc(res.Left, func(a, b Left) int { return strings.Compare(a.Path, b.Path) })
	assert.DeepEqual(t, res, &Result{Dir: d.Dir, Left: []Left{{file, CauseImmutable, reason}, {dir, CauseImmutable, reason}}})
	assert.Assert(t, cmp.Contains(hints(res.Err()), "chattr -i -a "+file+"\nchattr -i -a "+dir+"\n"))
	assert.DeepEqual(t, namesIn(t, d.Dir), []string{"etcd", "kubelet", "rootlessnode.json"})
	assert.NilError(t, setFlag(file, false))
	assert.NilError(t, setFlag(dir, false))
	assert.DeepEqual(t, removeAll(t, d), &Result{Dir: d.Dir})
}

// immutable is the requirement that files can have the immutable flag.
var immutable = testutil.Requirement{Name: "immutable-flag", Check: func() error {
	f, err := os.CreateTemp("", "rootlessnode-test")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }()
	defer f.Close()
	if err := setFlag(f.Name(), true); err != nil {
		return err
	}
	return setFlag(f.Name(), false)
}}

func setFlag(path string, on bool) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil {
		return fmt.Errorf("read the flags of %s: %w", path, err)
	}
	const immutableFlag = 0x10 // FS_IMMUTABLE_FL of ioctl_iflags(2)
	flags &^= immutableFlag
	if on {
		flags |= immutableFlag
	}
	return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags)
}
