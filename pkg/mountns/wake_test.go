package mountns

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
)

// TestHostIsNotWoken checks that a thousand mounts and unmounts inside do not wake processes that watch the host's mounts, and
// do not change the host's mount table. With Shared a single mount wakes them, which shows that the test detects it.
func TestHostIsNotWoken(t *testing.T) {
	onHost(t, sharedHost, func(t *testing.T, s *Store) {
		for _, tc := range []struct {
			p       Propagation
			times   string
			changed bool
		}{{Slave, "1000", false}, {Shared, "1", true}} {
			name := string(tc.p)
			_, err := s.Create(Spec{name, tc.p})
			assert.NilError(t, err)
			dir := filepath.Join(os.Getenv(envHost), "volume-"+name)
			assert.NilError(t, os.Mkdir(dir, 0o755))
			before := watchHost(t)
			out := execIn(t, s, name, "/usr/bin/env", envHelper+"=churn", "TIMES="+tc.times, ownCopy(t), dir)
			equal(t, out, tc.times, "mounts")
			equal(t, before.changed(), tc.changed, name)
			equal(t, before.list, watchHost(t).list, "the host's mounts after "+name)
		}
	})
}

// hostMounts is the host's mount table, open for polling. It is not an os.File, because the Go runtime would poll it too and
// consume the event.
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

// changed reports whether a mount has changed since the file was opened (proc_pid_mountinfo(5)).
func (h hostMounts) changed() bool {
	fds := []unix.PollFd{{Fd: int32(h.fd), Events: unix.POLLPRI}}
	n, err := unix.Poll(fds, 0)
	return err != nil || n > 0
}
