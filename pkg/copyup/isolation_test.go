package copyup

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
)

// TestApplierStaysOnTheTmpfs checks that the applier refuses steps that lead out of the tmpfs.
func TestApplierStaysOnTheTmpfs(t *testing.T) {
	prepare := func(t *testing.T, host string, uid int) {
		makeTree(t, host, "etc/d/f", "run/d/", "var/lib/", "opt/")
		assert.NilError(t, filepath.WalkDir(host, func(name string, _ fs.DirEntry, err error) error {
			return errors.Join(err, os.Lchown(name, uid, -1)) // so that the kernel itself would allow the steps
		}))
	}
	inside(t, prepare, nil, func(t *testing.T, host string) {
		takeOver(t, host)
		_, err := NewDriver(Spec{}, nil).CopyUp([]string{"/etc"})
		assert.NilError(t, err)
		orig, err := liveView{}.Original("/etc")
		assert.NilError(t, err)
		before := snapshot(t, host)
		for _, s := range []Step{
			{Op: OpMakeDir, Root: "/etc", Path: "/etc/d/x", Mode: 0o755},
			{Op: OpRemove, Root: "/etc", Path: "/etc/d/f"},
			{Op: OpLink, Root: "/etc", Path: "/etc/" + orig + "/x", Link: "y"},
			{Op: OpChmod, Root: "/etc", Path: "/etc/" + orig, Mode: 0o700},
			{Op: OpChmod, Root: "/etc", Path: "/etc/d", Mode: 0o700},
			{Op: OpChmod, Root: "/run", Path: "/run", Mode: 0o700},
			{Op: OpMakeDir, Root: "/run", Path: "/run/x", Mode: 0o755},
			{Op: OpMakeDir, Root: "/etc", Path: "/etc/../run/x", Mode: 0o755},
			{Root: "/etc", Path: "/etc/x"},
		} {
			a := newApplier(nil, nil)
			err := a.apply(s)
			a.close()
			assert.Assert(t, err != nil, "%v", s)
		}
		assert.Equal(t, snapshot(t, host), before)
	})
}

// TestPropagationBetweenHostAndNode simulates the host in a mount namespace with a shared root, and the node in a child of it.
func TestPropagationBetweenHostAndNode(t *testing.T) {
	prepare := func(t *testing.T, host string, uid int) {
		makeTree(t, host, "etc/x", "run/x", "run/user/x", "var/disk/", "var/lib/x", "var/ours/", "opt/")
		assert.NilError(t, os.Chown(host, uid, -1))
	}
	inside(t, prepare, nil, func(t *testing.T, host string) {
		if level() == "2" {
			propagationNode(t)
			return
		}
		takeOver(t, host)
		mount(t, "none", "/", "", unix.MS_REC|unix.MS_SHARED, "")
		cmd := inNamespace(t, 0, 0, "2")
		in, err := cmd.StdinPipe()
		assert.NilError(t, err)
		out, err := cmd.StdoutPipe()
		assert.NilError(t, err)
		cmd.Stderr = os.Stderr
		assert.NilError(t, cmd.Start())
		lines := bufio.NewReader(out)
		waitFor(t, lines, "ready")
		mount(t, "none", "/var/disk", "tmpfs", 0, "")
		assert.NilError(t, os.WriteFile("/var/disk/late", []byte("late"), 0o644))
		_, err = io.WriteString(in, "mounted\n")
		assert.NilError(t, err)
		rest, err := io.ReadAll(lines)
		assert.NilError(t, err)
		assert.NilError(t, cmd.Wait(), "%s", rest)

		_, err = os.Stat("/var/disk/late")
		assert.NilError(t, err)
		mounts := read(t, "/proc/self/mountinfo")
		assert.Assert(t, !strings.Contains(mounts, "ours") && !strings.Contains(mounts, ".ro"), mounts)
	})
}

// propagationNode does not unmount its mounts, so that the host can check for leaked mounts: its mount namespace ends with
// it, but a leaked mount would remain.
func propagationNode(t *testing.T) {
	mount(t, "none", "/", "", unix.MS_REC|unix.MS_SLAVE, "") // RootlessKit's rslave
	spec := Spec{
		CopyUp: standardDirs(), Real: DefaultReal(), Persist: os.Getenv(envHost) + "/inside", Volatile: []string{"/run"},
		Covers: []Cover{{Path: "/run/user"}},
	}
	_, err := NewDriver(spec, nil).CopyUp(standardDirs())
	assert.NilError(t, err)
	shared, slave, err := Propagation("/")
	assert.NilError(t, err)
	assert.Assert(t, !shared && slave)
	for range 2 {
		assert.NilError(t, EnsureShared("/"))
	}
	for path, wantSlave := range map[string]bool{"/": true, "/etc/": true, "/run/": false, "/run/user": false, "/run/netns": false, "/var/disk": true} {
		shared, slave, err := Propagation(path)
		assert.NilError(t, err)
		assert.Assert(t, shared, path)
		assert.Equal(t, slave, wantSlave, path)
	}
	fmt.Println("ready")
	waitFor(t, bufio.NewReader(os.Stdin), "mounted")
	assert.Equal(t, read(t, "/var/disk/late"), "late")
	assert.NilError(t, os.Mkdir("/var/lib/ours", 0o755))
	mount(t, "none", "/var/lib/ours", "tmpfs", 0, "")
	assert.NilError(t, os.Mkdir("/opt/ours", 0o755))
	mount(t, "none", "/opt/ours", "tmpfs", 0, "")
	mount(t, "none", "/var/ours", "tmpfs", 0, "") // through the link, onto the host's own directory
}

func waitFor(t *testing.T, r *bufio.Reader, word string) {
	t.Helper()
	for {
		line, err := r.ReadString('\n')
		assert.NilError(t, err, "waiting for %q", word)
		if strings.TrimSpace(line) == word {
			return
		}
	}
}

func TestEnsureSharedOnAPrivateHost(t *testing.T) {
	inside(t, nil, nil, func(t *testing.T, _ string) {
		mount(t, "none", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
		assert.NilError(t, EnsureShared("/"))
		shared, slave, err := Propagation("/proc")
		assert.NilError(t, err)
		assert.Assert(t, shared && !slave)
		err = EnsureShared("/proc/self")
		assert.ErrorContains(t, err, "make the mounts below /proc/self shared")
		_, _, err = Propagation("/none/at/all")
		assert.ErrorType(t, err, func(err error) bool { return errors.Is(err, fs.ErrNotExist) })
	})
}
