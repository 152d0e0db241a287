package copyup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
	"gotest.tools/v3/poll"
)

// followLimit is a generous timeout, also for a loaded machine.
const followLimit = 30 * time.Second

func soon(t *testing.T, what string, check func() error) {
	t.Helper()
	poll.WaitOn(t, func(poll.LogT) poll.Result {
		if err := check(); err != nil {
			return poll.Continue("%s: %v", what, err)
		}
		return poll.Success()
	}, poll.WithDelay(5*time.Millisecond), poll.WithTimeout(followLimit))
}

func there(name string) func() error {
	return func() error { _, err := os.Stat(name); return err }
}

func gone(name string) func() error {
	return func() error {
		_, err := os.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return fmt.Errorf("%s exists: %w", name, err)
	}
}

func TestFollowHost(t *testing.T) {
	prepare := func(t *testing.T, host string, uid int) {
		hostTrees(t, host, uid)
		for _, dir := range []string{"etc", "etc/kubernetes", "run", "var", "var/lib", "var/log", "opt"} {
			assert.NilError(t, os.Chown(filepath.Join(host, dir), uid, -1))
		}
		assert.NilError(t, os.Remove(host+"/run/xtables.lock"))
	}
	inside(t, prepare, nil, func(t *testing.T, host string) {
		takeOver(t, host)
		spec := standardSpec()
		_, err := NewDriver(spec, nil).CopyUp(standardDirs())
		assert.NilError(t, err)
		makeTree(t, host, "var/between/x") // created before FollowHost starts
		ctx, cancel := context.WithCancel(t.Context())
		ready, done := make(chan struct{}), make(chan error, 1)
		go func() { done <- FollowHost(ctx, spec, func() { close(ready) }) }()
		defer func() { cancel(); assert.NilError(t, <-done) }()
		select {
		case <-ready:
		case err := <-done:
			done <- err
			t.Fatal(err)
		}
		assert.NilError(t, there("/var/between/x")())

		writable(t, "/var") // entries created inside are not changed
		assert.NilError(t, os.WriteFile("/var/ours", []byte("ours"), 0o600))
		makeTree(t, host, "var/ours", "run/xtables.lock", "etc/kubernetes/vendor-dir", "var/new/x", "var/lib/new/x", "var/log/new.log",
			"etc/new -> os-release", "run/new/x", "opt/new/x")
		for _, name := range []string{"/var/new/x", "/var/lib/new/x", "/var/log/new.log", "/run/new/x", "/opt/new/x"} {
			soon(t, name+" is there", there(name))
		}
		soon(t, "/etc/new is there", func() error {
			if text, err := os.Readlink("/etc/new"); err != nil || text != "os-release" {
				return fmt.Errorf("%q: %w", text, err)
			}
			return nil
		})
		assert.Equal(t, read(t, "/var/ours"), "ours")
		assert.NilError(t, errors.Join(gone("/run/xtables.lock")(), gone("/etc/kubernetes/vendor-dir")()))

		mount(t, "none", "/var/new", "tmpfs", 0, "") // like a mount of the host that propagates
		assert.NilError(t, unix.Unmount("/var/new", 0))
		assert.NilError(t, errors.Join(os.RemoveAll(host+"/var/new"), os.Rename(host+"/var/lib/new", host+"/var/lib/newer")))
		soon(t, "/var/new is gone", gone("/var/new"))
		soon(t, "/var/lib/new is gone", gone("/var/lib/new"))
		soon(t, "/var/lib/newer is there", there("/var/lib/newer/x"))
	})
}

func TestFollowedDirs(t *testing.T) {
	t.Parallel()
	var got []string
	for _, d := range followedDirs(standardSpec()) {
		got = append(got, d.path)
	}
	assert.DeepEqual(t, got, []string{"/etc", "/run", "/var", "/var/lib", "/var/log", "/opt"})
}
