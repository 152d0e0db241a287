package copyup

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// persistHost creates hostTrees and, if the tests run as root, directories of another owner. An ordinary user cannot create
// such directories; then they belong to the account, which writes to the host's directories (see ownDirectories).
func persistHost(t *testing.T, host string, uid int) {
	t.Helper()
	hostTrees(t, host, uid)
	makeTree(t, host, "data/", "var/opt/vendor/tool", "var/cache/apt/pkg", "opt/old/tool", "etc/zone -> passwd", "etc/mine", "etc/os")
	assert.NilError(t, os.Chown(host+"/data", uid, -1))
	if os.Getuid() != 0 {
		return
	}
	for _, dir := range []string{"var/opt", "var/cache"} {
		assert.NilError(t, os.Chown(filepath.Join(host, dir), 4711, -1))
	}
}

// ownDirectories reports, inside the namespace, whether /var/opt and /var/cache of the host belong to the account, so that they
// are links and not real directories.
func ownDirectories(t *testing.T) bool {
	t.Helper()
	var st unix.Stat_t
	assert.NilError(t, unix.Stat(os.Getenv(envHost)+"/var/opt", &st))
	return st.Uid == 0
}

func persistSpec(host string) Spec {
	s := standardSpec()
	s.Persist, s.Volatile, s.Merged = host+"/data/inside", []string{"/run"}, DefaultMerged()
	s.Rewritten = []string{"/etc/protocols", "/var/lib/dpkg/status", "/opt/none/at/all"}
	return s
}

// start simulates one start of a node on the host: copy-up in a new mount namespace.
func start(t *testing.T, spec Spec, host string) (warnings string, err error) {
	t.Helper()
	takeOver(t, host)
	var out bytes.Buffer
	log := logrus.New()
	log.SetOutput(&out)
	_, err = NewDriver(spec, log).CopyUp(nil)
	if err == nil {
		spec.Merged = nil // directories that are already real stay real
		steps, planErr := planSteps(spec, liveView{})
		assert.NilError(t, planErr)
		assert.Equal(t, len(steps), 0, "%v", steps)
	}
	return out.String(), err
}

// TestPersist checks that entries created inside copied-up directories exist after the next start, at every level at which
// entries can be created, and that the links to the host's entries follow the host.
func TestPersist(t *testing.T) {
	spec := persistSpec(os.Getenv(envHost))
	switch level() {
	case "first":
		_, err := start(t, spec, os.Getenv(envHost))
		assert.NilError(t, err)
		fillDirectories(t)
	case "second":
		warnings, err := start(t, spec, os.Getenv(envHost))
		assert.NilError(t, err)
		checkDirectories(t)
		for _, name := range []string{"/opt/store", "/etc/foo", "/etc/mine"} {
			assert.Assert(t, is.Contains(warnings, "the host's "+name+" is not visible inside"))
		}
		assert.Assert(t, !strings.Contains(warnings, "/opt/cni") && !strings.Contains(warnings, "/var/lib"), warnings)
	case "other": // another node of the account
		spec.Persist += "-other"
		_, err := start(t, spec, os.Getenv(envHost))
		assert.NilError(t, err)
		for _, name := range []string{"/var/lib/app-data", "/etc/written", "/opt/link"} {
			assert.NilError(t, gone(name)())
		}
		if !ownDirectories(t) {
			assert.NilError(t, gone("/var/opt/pv")())
		}
		assert.Equal(t, read(t, "/opt/store/vendor-dir"), "opt/store/vendor-dir\n")
	default:
		asEachUser(t, func(uid int, host string, run func(level string)) {
			persistHost(t, host, uid)
			run("first")
			changeHost(t, host)
			before := snapshot(t, host, append(userPaths(uid), "data")...)
			run("second")
			run("other")
			assert.Equal(t, snapshot(t, host, append(userPaths(uid), "data")...), before)
			assert.Equal(t, read(t, host+"/data/inside/opt/store/pvc/data"), "kept")
		})
	}
}

// madeEntries returns the entries that pods, provisioners and users create inside, by level.
func madeEntries() []string {
	return []string{
		"/opt/store/pvc/data", "/var/store/data", "/var/lib/app-data/db/data", "/var/lib/rancher/k3s/storage/data", "/var/log/app/data",
		"/var/opt/pv/data", "/var/cache/x/data", "/etc/foo/data", "/etc/written", "/opt/cni/bin/plugin", "/var/srv/data",
	}
}

func fillDirectories(t *testing.T) {
	t.Helper()
	for _, name := range madeEntries() {
		assert.NilError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		assert.NilError(t, os.WriteFile(name, []byte("kept"), 0o600))
	}
	assert.NilError(t, errors.Join(
		os.Symlink("/nowhere", "/opt/link"), os.Symlink("store", "/opt/current"), os.Mkdir("/var/.ro2", 0o755),
		os.WriteFile("/etc/protocols", []byte("of this run"), 0o600), os.Mkdir("/run/gone", 0o755),
		os.Remove("/etc/mine"), os.WriteFile("/etc/mine", []byte("edited"), 0o600),
	))
	assert.Equal(t, read(t, "/opt/old/tool"), "opt/old/tool\n")
	assert.Equal(t, read(t, "/etc/zone"), "etc/passwd\n")
	assert.Equal(t, read(t, "/var/opt/vendor/tool"), "var/opt/vendor/tool\n")
}

// changeHost changes the host's trees between two starts: it adds and removes entries, some with names that exist inside.
func changeHost(t *testing.T, host string) {
	t.Helper()
	makeTree(t, host, "opt/new/tool", "opt/store/vendor-dir", "etc/foo", "var/opt/late/tool", "etc/protocols")
	assert.NilError(t, errors.Join(
		os.RemoveAll(host+"/opt/old"), os.Remove(host+"/etc/zone"), os.Symlink("os", host+"/etc/zone"), os.RemoveAll(host+"/var/cache/apt"),
	))
}

func checkDirectories(t *testing.T) {
	t.Helper()
	for _, name := range madeEntries() {
		assert.Equal(t, read(t, name), "kept", name)
	}
	for name, text := range map[string]string{"/opt/link": "/nowhere", "/opt/current": "store"} {
		got, err := os.Readlink(name)
		assert.NilError(t, err)
		assert.Equal(t, got, text)
	}
	assert.Equal(t, read(t, "/etc/mine"), "edited")
	assert.NilError(t, errors.Join(gone("/run/gone")(), gone("/opt/old")(), gone("/var/cache/apt")(), there("/opt/new/tool")(), there("/var/opt/late/tool")()))
	assert.Equal(t, read(t, "/var/opt/vendor/tool"), "var/opt/vendor/tool\n")
	assert.NilError(t, gone("/opt/store/vendor-dir")())
	assert.Equal(t, read(t, "/etc/zone"), "etc/os\n")
	assert.Equal(t, read(t, "/etc/protocols"), "etc/protocols\n") // the host has added one
	checkModes(t)
}

// TestPersistTampered checks that entries that a privileged pod left on the bases cannot mislead a later start.
func TestPersistTampered(t *testing.T) {
	host := os.Getenv(envHost)
	spec := persistSpec(host)
	switch level() {
	case "":
		asEachUser(t, func(uid int, host string, run func(level string)) {
			persistHost(t, host, uid)
			base := host + "/data/inside"
			run("start")
			replace := func(name, link string) {
				t.Helper()
				assert.NilError(t, os.RemoveAll(base+name))
				if link != "" {
					assert.NilError(t, os.Symlink(link, base+name))
				}
			}
			replace("/var/lib", "/run/evil")
			replace("/etc/passwd", "/run/evil")
			assert.NilError(t, os.MkdirAll(base+"/opt/.ro2/x", 0o755))
			run("start")
			replace("/etc/passwd", "")
			replace("/opt/cni", "")
			assert.NilError(t, os.WriteFile(base+"/opt/cni", nil, 0o600))
			run("file")
			replace("/opt/cni", "")
			run("start")
			replace("/var/lib/rootlessnode", "/run/evil")
			run("kept")
			replace("/var/lib/rootlessnode", "")
			replace("/var/.ro1", "/run")
			run("original")
			assert.NilError(t, os.RemoveAll(host+"/data/inside"))
			assert.NilError(t, os.Symlink(host+"/opt", host+"/data/inside"))
			assert.NilError(t, os.Chmod(host+"/opt", 0o755))
			run("link")
		})
	case "start":
		_, err := start(t, spec, host)
		assert.NilError(t, err)
		assert.NilError(t, gone("/run/evil")())
		writable(t, "/var/lib/kubelet")
		assert.Equal(t, read(t, "/var/lib/dpkg/status"), "var/lib/dpkg/status\n")
		assert.Equal(t, read(t, "/opt/vendor/tool"), "opt/vendor/tool\n")
	default:
		_, err := start(t, spec, host)
		want := map[string]string{
			"file": "/opt/cni was created inside the node and conflicts with a path", "original": "not a directory",
			"kept": "/var/lib/rootlessnode was created inside the node and conflicts with a path", "link": "not a directory",
		}[level()]
		assert.ErrorContains(t, err, want)
		if hints := errdefs.ReportOf(err).Hints; level() == "file" {
			assert.Equal(t, hints[0], "mv "+spec.Persist+"/opt/cni "+spec.Persist+"/opt/cni.saved")
		}
	}
}

// TestPersistOnOddDataDirs checks that data dirs on mounts with locked flags work, and that a full or read-only one causes
// one clear error.
func TestPersistOnOddDataDirs(t *testing.T) {
	host := os.Getenv(envHost)
	spec := persistSpec(host)
	flags := map[string]uintptr{
		"flags": unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOATIME, "full": 0, "read-only": 0,
	}
	if level() == "" {
		asEachUser(t, func(uid int, host string, run func(level string)) {
			persistHost(t, host, uid)
			for level := range flags {
				run(level)
			}
		})
		return
	}
	mount(t, "none", host+"/data", "tmpfs", flags[level()], "nr_inodes=400")
	switch level() {
	case "full":
		for i := range 390 {
			assert.NilError(t, os.WriteFile(filepath.Join(host, "data", strconv.Itoa(i)), nil, 0o600))
		}
	case "read-only":
		mount(t, "none", host+"/data", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
	}
	_, err := start(t, spec, host)
	switch level() {
	case "full":
		assert.ErrorIs(t, err, unix.ENOSPC)
	case "read-only":
		assert.ErrorIs(t, err, unix.EROFS)
	default:
		assert.NilError(t, err)
		writable(t, "/opt")
		var st unix.Statfs_t
		assert.NilError(t, unix.Statfs("/opt", &st))
		assert.Assert(t, st.Flags&unix.ST_NOEXEC != 0)
	}
}

// TestFollowHostOnPersistentBases checks that FollowHost works on persistent bases too, and that stale links of an earlier run
// are distinguished from links that were created inside.
func TestFollowHostOnPersistentBases(t *testing.T) {
	prepare := func(t *testing.T, host string, uid int) {
		persistHost(t, host, uid)
		for _, dir := range []string{"etc", "var", "var/lib", "var/opt", "opt"} {
			assert.NilError(t, os.Chown(filepath.Join(host, dir), uid, -1))
			assert.NilError(t, os.Chmod(filepath.Join(host, dir), 0o755))
		}
	}
	inside(t, prepare, nil, func(t *testing.T, host string) {
		takeOver(t, host)
		spec := persistSpec(host)
		assert.NilError(t, os.MkdirAll(spec.Persist+"/var/opt", 0o755)) // real since an earlier start
		_, err := NewDriver(spec, nil).CopyUp(nil)
		assert.NilError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		ready, done := make(chan struct{}), make(chan error, 1)
		go func() { done <- FollowHost(ctx, spec, func() { close(ready) }) }()
		defer func() { cancel(); assert.NilError(t, <-done) }()
		<-ready
		assert.NilError(t, os.WriteFile("/var/opt/ours", []byte("ours"), 0o600))
		makeTree(t, host, "opt/new/x", "var/lib/new/x", "var/opt/ours/x", "var/opt/new/x", "etc/new -> os")
		for _, name := range []string{"/opt/new/x", "/var/lib/new/x", "/var/opt/new/x", "/etc/new"} {
			soon(t, name+" is there", there(name))
		}
		text, err := os.Readlink("/etc/new")
		assert.NilError(t, err)
		assert.Equal(t, text, managedLink("os"))
		assert.Equal(t, read(t, "/var/opt/ours"), "ours")
		assert.NilError(t, os.RemoveAll(host+"/opt/new"))
		soon(t, "/opt/new is gone", gone("/opt/new"))
	})
}
