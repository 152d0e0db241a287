package mountns

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
)

// TestHostIsNotWoken: a thousand mounts inside, made and unmounted, do not wake who watches the host's, and leave the
// host's listing as it was. With Shared, one does: so the watcher can see.
func TestHostIsNotWoken(t *testing.T) {
	onHost(t, sharedHost, func(t *testing.T, s *Store) {
		for _, tc := range []struct {
			p     Propagation
			times string
			woken bool
		}{{Slave, "1000", false}, {Shared, "1", true}} {
			name := string(tc.p)
			_, err := s.Create(Spec{name, tc.p})
			assert.NilError(t, err)
			dir := filepath.Join(os.Getenv(envHost), "volume-"+name)
			assert.NilError(t, os.Mkdir(dir, 0o755))
			before := watchHost(t)
			out := execIn(t, s, name, "/usr/bin/env", envHelper+"=churn", "TIMES="+tc.times, ownCopy(t), dir)
			equal(t, out, tc.times, "mounts")
			equal(t, before.woken(), tc.woken, name)
			equal(t, before.list, watchHost(t).list, "the host's mounts after "+name)
		}
	})
}

// hostMounts are the host's mounts, open for polling. Not an os.File: the runtime would poll it too, and take the news.
type hostMounts struct {
	fd   int
	list string
}

func watchHost(t *testing.T) hostMounts {
	t.Helper()
	fd, err := unix.Open("/proc/self/mountinfo", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	assert.NilError(t, err)
	t.Cleanup(func() { _ = unix.Close(fd) })
	list, err := os.ReadFile("/proc/self/mountinfo")
	assert.NilError(t, err)
	return hostMounts{fd, string(list)}
}

// woken tells whether anything has happened since the file was opened (proc_pid_mountinfo(5)).
func (h hostMounts) woken() bool {
	fds := []unix.PollFd{{Fd: int32(h.fd), Events: unix.POLLPRI}}
	n, err := unix.Poll(fds, 0)
	return err != nil || n > 0
}
