package copyup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

func standardDirs() []string { return []string{"/etc", "/run", "/var", "/opt"} }

const dataDir = "/var/lib/rootlessnode/.local/share/nodes/default"

// hostTrees creates a host on which root uses the same programs (case E4), with the home of the account below /var.
func hostTrees(t *testing.T, host string, uid int) {
	t.Helper()
	makeTree(t, host,
		"etc/passwd", "etc/mtab -> /proc/mounts", "etc/os-release -> ../usr/lib/os-release", "etc/resolv.conf -> ../run/resolve/stub",
		"etc/alternatives/sh -> /bin/sh", "etc/ssl/certs/ca -> ../ca.pem", "etc/ssl/ca.pem",
		"etc/cni/net.d/10-host.conf", "etc/containers/policy.json", "etc/kubernetes/ 0700",
		"run/netns/ 0700", "run/containerd/s/", "run/containerd/ 0700", "run/xtables.lock 0600", "run/lock/ 1777",
		"run/user/"+fmt.Sprint(uid)+"/rootlessnode/lock", "run/resolve/stub",
		"var/run -> /run", "var/lock -> /run/lock", "var/tmp/ 1777", "var/lib/dpkg/status", "var/lib/app -> dpkg",
		"var/lib/cni/ 0700", "var/lib/kubelet/ 0700", "var/log/syslog", "var/log/README -> ../../etc/passwd",
		"var/log/pods/ 0700", "opt/vendor/tool", "opt/cni/bin/bridge",
	)
	home := host + "/var/lib/rootlessnode"
	makeTree(t, home, ".local/share/nodes/default/kubelet/", ".local/share/nodes/default/pods/kept", ".local/share/nodes/default/net.d/")
	for _, dir := range []string{home, host + "/run/user/" + fmt.Sprint(uid)} {
		assert.NilError(t, filepath.WalkDir(dir, func(name string, _ fs.DirEntry, err error) error {
			return errors.Join(err, os.Lchown(name, uid, -1))
		}))
	}
}

func standardSpec() Spec {
	return Spec{
		CopyUp: standardDirs(),
		Real:   DefaultReal(),
		Binds: []Bind{
			{Source: dataDir + "/kubelet", Target: "/var/lib/kubelet", Mode: 0o750},
			{Source: dataDir + "/pods", Target: "/var/log/pods"},
			{Source: dataDir + "/net.d", Target: "/etc/cni/net.d"},
		},
		MaskKmsg: true,
	}
}

// userPaths returns the parts of the host that the account uses both inside and outside.
func userPaths(uid int) []string {
	return []string{"var/lib/rootlessnode", "var/tmp", "run/user/" + fmt.Sprint(uid)}
}

func TestDriver(t *testing.T) {
	before := map[int]string{}
	prepare := func(t *testing.T, host string, uid int) {
		hostTrees(t, host, uid)
		before[uid] = snapshot(t, host, userPaths(uid)...)
	}
	check := func(t *testing.T, host string, uid int) {
		assert.Equal(t, snapshot(t, host, userPaths(uid)...), before[uid])
		home := filepath.Join(host, dataDir)
		assert.Equal(t, read(t, home+"/kubelet/state"), "survives")
		info, err := os.Stat(home + "/kubelet")
		assert.NilError(t, err)
		assert.Equal(t, info.Mode().Perm(), fs.FileMode(0o750))
	}
	inside(t, prepare, check, func(t *testing.T, host string) {
		takeOver(t, host)
		syscall.Umask(0o077) // the modes must not depend on the umask
		spec := standardSpec()
		copied, err := NewDriver(spec, nil).CopyUp(standardDirs())
		assert.NilError(t, err)
		assert.DeepEqual(t, copied, standardDirs())

		checkModes(t)
		for _, d := range spec.Real {
			writable(t, d.Path)
		}
		for _, dir := range append(standardDirs(), "/var/lib", "/var/log", "/var/tmp") {
			writable(t, dir)
		}
		assert.NilError(t, os.WriteFile("/run/xtables.lock", nil, 0o600))
		assert.NilError(t, os.MkdirAll("/var/lib/etcd/member", 0o700))
		checkLinks(t, host)

		assert.NilError(t, os.WriteFile("/var/lib/kubelet/state", []byte("survives"), 0o600))
		assert.Equal(t, read(t, "/var/log/pods/kept"), ".local/share/nodes/default/pods/kept\n")
		assert.Equal(t, read(t, dataDir+"/kubelet/state"), "survives")

		// RootlessKit then replaces the link; the host's file is not changed.
		assert.NilError(t, os.RemoveAll("/etc/resolv.conf"))
		assert.NilError(t, os.WriteFile("/etc/resolv.conf", []byte("nameserver 10.0.2.3\n"), 0o644))

		fd, err := unix.Open("/dev/kmsg", unix.O_RDONLY|unix.O_NONBLOCK, 0)
		assert.Assert(t, err == nil || errors.Is(err, fs.ErrNotExist), "%v", err)
		_ = unix.Close(fd)

		steps, err := planSteps(spec, liveView{})
		assert.NilError(t, err)
		assert.Equal(t, len(steps), 0, "%v", steps)
	})
}

func checkModes(t *testing.T) {
	t.Helper()
	for name, want := range map[string]fs.FileMode{
		"/etc": 0o755, "/run": 0o755, "/var": 0o755, "/opt": 0o755, "/var/lib": 0o755, "/var/log": 0o755,
		"/run/netns": 0o755, "/etc/kubernetes": 0o755, "/run/lock": fs.ModeSticky | 0o777,
		"/var/tmp": fs.ModeSticky | 0o777, "/var/lib/kubelet": 0o750,
	} {
		info, err := os.Stat(name)
		assert.NilError(t, err)
		assert.Equal(t, info.Mode(), fs.ModeDir|want, name)
	}
}

func checkLinks(t *testing.T, host string) {
	t.Helper()
	for _, name := range []string{
		"etc/passwd", "etc/ssl/certs/ca", "etc/resolv.conf", "var/lib/dpkg/status", "var/lib/app/status", "var/log/syslog",
		"var/log/README", "opt/vendor/tool",
	} {
		want, err := filepath.EvalSymlinks(host + "/" + name)
		if name == "etc/resolv.conf" || name == "var/log/README" { // seen from outside, these lead out of host
			want, err = host+"/run/resolve/stub", nil
			if name == "var/log/README" {
				want = host + "/etc/passwd"
			}
		}
		assert.NilError(t, err)
		assert.Equal(t, read(t, "/"+name), read(t, want), name)
	}
	for name, text := range map[string]string{
		"/etc/mtab": "/proc/mounts", "/etc/os-release": "../usr/lib/os-release", "/var/run": "/run",
		"/var/log/README": "../../etc/passwd", "/var/lib/app": "dpkg", "/var/lock": "/run/lock",
	} {
		got, err := os.Readlink(name)
		assert.NilError(t, err)
		assert.Equal(t, got, text, name)
	}
	entries, err := os.ReadDir("/run/user")
	assert.NilError(t, err)
	runtimeDir := "/run/user/" + entries[0].Name()
	writable(t, runtimeDir)
	assert.Assert(t, read(t, "/var"+runtimeDir+"/rootlessnode/lock") != "")
	writable(t, "/var/lib/rootlessnode")
}

// TestDriverRealHost uses the real directories of this machine.
func TestDriverRealHost(t *testing.T) {
	prepare := func(t *testing.T, host string, uid int) {
		makeTree(t, host, "data/a/", "data/b/")
		assert.NilError(t, errors.Join(os.Chown(host+"/data/a", uid, -1), os.Chown(host+"/data/b", uid, -1)))
	}
	inside(t, prepare, nil, func(t *testing.T, host string) {
		mount(t, "none", "/", "", unix.MS_REC|unix.MS_SLAVE, "")
		var dirs []string
		for _, dir := range standardDirs() {
			if info, err := os.Stat(dir); err == nil && info.IsDir() {
				dirs = append(dirs, dir)
			}
		}
		spec := Spec{CopyUp: dirs, Real: DefaultReal(), Binds: []Bind{
			{Source: host + "/data/a", Target: "/var/lib/kubelet"}, {Source: host + "/data/b", Target: "/etc/cni/net.d"},
		}}
		const stable = "/etc/profile" // unlike /etc/passwd, which the tests of internal/hostsetup change meanwhile
		before, err := os.ReadFile(stable)
		assert.NilError(t, err)
		libs, err := os.ReadDir("/var/lib")
		assert.NilError(t, err)
		_, err = NewDriver(spec, nil).CopyUp(dirs)
		assert.NilError(t, err)
		for _, d := range spec.Real {
			if filepath.Dir(d.Path) != "/opt" {
				writable(t, d.Path)
			}
		}
		assert.Equal(t, read(t, stable), string(before))
		for _, e := range libs {
			if e.Name() == "rootlessnode-host" { // created by the tests of internal/hostsetup too
				continue
			}
			_, err := os.Lstat("/var/lib/" + e.Name())
			assert.NilError(t, err)
		}
	})
}

func TestDriverHostWithOddDirectories(t *testing.T) {
	prepare := func(t *testing.T, host string, uid int) {
		makeTree(t, host, "etc/x", "run/x", "var/opt/vendor/tool", "var/lib/x", "opt/", "data/")
		assert.NilError(t, os.Chown(host+"/data", uid, -1))
	}
	inside(t, prepare, nil, func(t *testing.T, host string) {
		takeOver(t, host)
		// A separate root directory, with /opt as a link, without /srv, and with a read-only /tmp.
		root := "/var/lib"
		mount(t, "none", root, "tmpfs", 0, "")
		for _, dir := range []string{"etc", "run", "var", "tmp", "proc", "dev", "data"} {
			assert.NilError(t, os.Mkdir(root+"/"+dir, 0o755))
		}
		assert.NilError(t, os.Symlink("var/opt", root+"/opt"))
		for _, dir := range []string{"/etc", "/run", "/proc", "/dev"} {
			mount(t, dir, root+dir, "", unix.MS_BIND|unix.MS_REC, "")
		}
		mount(t, host+"/var", root+"/var", "", unix.MS_BIND|unix.MS_REC, "")
		mount(t, host+"/data", root+"/data", "", unix.MS_BIND, "")
		mount(t, "none", root+"/tmp", "tmpfs", unix.MS_RDONLY, "")
		assert.NilError(t, unix.Chroot(root))
		assert.NilError(t, os.Chdir("/"))

		dirs := append(standardDirs(), "/srv")
		spec := Spec{CopyUp: dirs, Real: DefaultReal(), Binds: []Bind{{Source: "/data", Target: "/opt/cni/bin"}}}
		copied, err := NewDriver(spec, nil).CopyUp(dirs)
		assert.NilError(t, err)
		assert.DeepEqual(t, copied, standardDirs())
		writable(t, "/opt/cni/bin")
		writable(t, "/var/opt/cni")
		assert.Equal(t, read(t, "/opt/vendor/tool"), "var/opt/vendor/tool\n")
		info, err := os.Stat("/var/tmp")
		assert.NilError(t, err)
		assert.Equal(t, info.Mode(), fs.ModeDir|fs.ModeSticky|0o777)
		entries, err := os.ReadDir("/tmp")
		assert.NilError(t, err)
		assert.Equal(t, len(entries), 0)
		mount(t, "none", "/tmp", "", unix.MS_REMOUNT, "") // test coverage is written there
	})
}

func TestDriverRefuses(t *testing.T) {
	inside(t, smallTrees, nil, func(t *testing.T, host string) {
		takeOver(t, host)
		for _, dirs := range [][]string{{"/tmp"}, {"/tmp/.."}, {"etc"}, {host}} {
			_, err := NewDriver(Spec{}, nil).CopyUp(dirs)
			assert.Assert(t, errors.Is(err, errdefs.ErrConfig), "%v: %v", dirs, err)
		}
		spec := standardSpec()
		spec.Binds = []Bind{{Source: "/var/lib/none", Target: "/run/a"}, {Source: "/etc/passwd", Target: "/run/b"}, {Source: "x", Target: "/run/c"}}
		_, err := NewDriver(spec, nil).CopyUp(nil)
		for _, want := range []string{`"/var/lib/none"`, `"/etc/passwd"`, "not a directory", `"x"`} {
			assert.ErrorContains(t, err, want)
		}

		// On shared mounts RootlessKit's driver must not be called.
		mount(t, "none", "/", "", unix.MS_REC|unix.MS_SHARED, "")
		before := snapshot(t, host)
		_, err = NewDriver(standardSpec(), nil).CopyUp(standardDirs())
		assert.ErrorContains(t, err, "its mount is shared")
		assert.Equal(t, len(errdefs.ReportOf(err).Hints), 1)
		assert.Equal(t, snapshot(t, host), before)
	})
}

func smallTrees(t *testing.T, host string, _ int) {
	makeTree(t, host, "etc/passwd", "run/x", "var/lib/x", "opt/")
	makeTree(t, host+dataDir, "kubelet/", "pods/", "net.d/")
}

// TestDriverBelowASharedRoot covers a /tmp on a shared mount, where the kernel refuses to move a bind out of /tmp. Without
// the private scratch directory, RootlessKit's driver then deletes the original.
func TestDriverBelowASharedRoot(t *testing.T) {
	prepare := func(t *testing.T, host string, uid int) {
		makeTree(t, host, "etc/x", "run/x", "var/lib/home/precious", "opt/")
		assert.NilError(t, os.Chown(host+"/var/lib/home", uid, -1))
	}
	check := func(t *testing.T, host string, _ int) {
		assert.Equal(t, read(t, host+"/var/lib/home/precious"), "var/lib/home/precious\n")
	}
	inside(t, prepare, check, func(t *testing.T, host string) {
		takeOver(t, host)
		mount(t, "none", "/var", "", unix.MS_PRIVATE, "")
		mount(t, "none", "/", "", unix.MS_SHARED, "")
		_, err := NewDriver(Spec{}, nil).CopyUp([]string{"/var"})
		assert.NilError(t, err)
		assert.Equal(t, read(t, "/var/lib/home/precious"), "var/lib/home/precious\n")
	})
}
