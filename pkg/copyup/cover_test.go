package copyup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"testing"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
)

// TestCovers checks that only the kept paths of a covered directory are reachable, by any name, and that a directory which
// the host creates later is covered too.
func TestCovers(t *testing.T) {
	dir := func(uid int) string { return "run/user/" + fmt.Sprint(uid) }
	prepare := func(t *testing.T, host string, uid int) {
		hostTrees(t, host, uid)
		makeTree(t, host, dir(uid)+"/bus", dir(uid)+"/systemd/private", dir(uid)+"/rootlessnode/default/node.sock",
			dir(uid)+"/rootlessnode/other/exec.sock", "xdg/bus", "xdg/rootlessnode/default/node.sock", "xdg/tool", "xdg/ 0700")
		assert.NilError(t, os.WriteFile(host+"/uid", fmt.Append(nil, uid), 0o644))
		assert.NilError(t, errors.Join(os.Chown(host+"/xdg", uid, -1), os.Chown(host+"/run", uid, -1)))
	}
	inside(t, prepare, nil, func(t *testing.T, host string) {
		takeOver(t, host)
		runtime := "/run/user/" + read(t, host+"/uid")
		spec := standardSpec()
		spec.Covers = []Cover{
			{Path: "/var/run/user", Keep: []string{"/var" + runtime + "/rootlessnode/default", "/etc", "/nowhere"}},
			{Path: host + "/xdg", Keep: []string{host + "/xdg/rootlessnode/default/node.sock", host + "/xdg/tool", host + "/xdg/rootlessnode/default"}},
			{Path: "/run/dbus"},
		}
		_, err := NewDriver(spec, nil).CopyUp(standardDirs())
		assert.NilError(t, err)
		original, err := liveView{}.Original("/run")
		assert.NilError(t, err)
		for _, top := range []string{runtime, "/var" + runtime, "/run/" + original + "/user/" + read(t, host+"/uid"), "/proc/self/root" + runtime, host + "/xdg"} {
			assert.NilError(t, errors.Join(
				gone(top+"/bus")(), gone(top+"/systemd")(), gone(top+"/rootlessnode/other")(), there(top+"/rootlessnode/default/node.sock")()))
		}
		assert.Assert(t, read(t, host+"/xdg/tool") != "")
		writable(t, runtime)
		info, err := os.Stat(host + "/xdg")
		assert.NilError(t, err)
		assert.Equal(t, info.Mode(), fs.ModeDir|0o700)

		ctx, cancel := context.WithCancel(t.Context())
		ready, done := make(chan struct{}), make(chan error, 1)
		go func() { done <- FollowHost(ctx, spec, func() { close(ready) }) }()
		defer func() { cancel(); assert.NilError(t, <-done) }()
		<-ready
		makeTree(t, host, "run/dbus/", "run/other/x")
		soon(t, "/run/dbus is there", there("/run/dbus"))
		makeTree(t, host, "run/dbus/system_bus_socket")
		assert.NilError(t, errors.Join(gone("/run/dbus/system_bus_socket")(), gone("/run/"+original+"/dbus/system_bus_socket")()))
	})
}

// TestCoverKeepsNothingOfItself checks that a cover cannot keep the covered directory itself.
func TestCoverKeepsNothingOfItself(t *testing.T) {
	inside(t, smallTrees, nil, func(t *testing.T, host string) {
		takeOver(t, host)
		spec := Spec{Covers: []Cover{{Path: "/run", Keep: []string{"/run"}}}}
		_, err := NewDriver(spec, nil).CopyUp([]string{"/var"})
		assert.ErrorContains(t, err, "it is the covered directory itself")
	})
}

// TestCoverCannotBeLeftOut checks that the kernel refuses a non-recursive bind of a directory above the cover, if the runtime
// directory is a separate file system as with logind. The kubelet binds a subPath in this way.
func TestCoverCannotBeLeftOut(t *testing.T) {
	prepare := func(t *testing.T, host string, uid int) {
		hostTrees(t, host, uid)
		makeTree(t, host, "run/user/4711/", "target/")
	}
	inside(t, prepare, nil, func(t *testing.T, host string) {
		if level() != "2" { // the host
			takeOver(t, host)
			mount(t, "none", "/run/user/4711", "tmpfs", 0, "")
			assert.NilError(t, os.WriteFile("/run/user/4711/bus", nil, 0o600))
			out, err := inNamespace(t, 0, 0, "2", envHost+"="+host).CombinedOutput()
			assert.NilError(t, err, "%s", out)
			return
		}
		mount(t, "none", "/", "", unix.MS_REC|unix.MS_SLAVE, "")
		spec := standardSpec()
		spec.Covers = []Cover{{Path: "/run/user"}}
		_, err := NewDriver(spec, nil).CopyUp(standardDirs())
		assert.NilError(t, err)
		original, err := liveView{}.Original("/run")
		assert.NilError(t, err)
		assert.ErrorIs(t, unix.Mount("/run/"+original, host+"/target", "", unix.MS_BIND, ""), unix.EINVAL)
		assert.NilError(t, gone("/run/user/4711")())
	})
}
