package mountns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/proc"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

func TestGuarantees(t *testing.T) {
	for _, tc := range []struct {
		name, host string
		asked, got Propagation
		want       Guarantees
		reasons    []string
	}{
		{"hidden", sharedHost, "", Slave, Guarantees{true, true, false}, nil},
		{"visible", sharedHost, Shared, Shared, Guarantees{true, true, true}, nil},
		{"cut off", sharedHost, Private, Private, Guarantees{false, true, false}, []string{"1: the namespace does not receive the host's mounts (propagation private)"}},
		{"private host", privateHost, Slave, Private, Guarantees{false, true, false},
			[]string{"1: the host's mount of / is private: run mount --make-shared /, then create the namespace again"}},
	} {
		t.Run(strings.ReplaceAll(tc.name, " ", "-"), func(t *testing.T) {
			onHost(t, tc.host, func(t *testing.T, s *Store) {
				c, err := s.Create(Spec{DefaultName, tc.asked})
				assert.NilError(t, err)
				equal(t, c.Guarantees, tc.want, "guarantees")
				equal(t, c.Propagation, tc.got, "propagation")
				assert.Check(t, is.DeepEqual(c.Reasons, tc.reasons))
				checkWithPrograms(t, s, tc.want)

				st, err := s.Status(DefaultName)
				assert.NilError(t, err)
				equal(t, st.Guarantees, tc.want, "guarantees of the status")
				assert.NilError(t, st.Err())
				entries, err := os.ReadDir(filepath.Dir(s.dir))
				assert.NilError(t, err)
				equal(t, len(entries), 1, "probes were left")
			})
		})
	}
}

// checkWithPrograms compares the guarantees with what other programs see. Of the package it uses only Exec.
func checkWithPrograms(t *testing.T, s *Store, want Guarantees) {
	t.Helper()
	host := tmpfs(t, "host")
	equal(t, strings.Contains(execIn(t, s, DefaultName, "cat", "/proc/self/mounts"), " "+host+" "), want.HostToInside, "1")
	inside := filepath.Join(os.Getenv(envHost), "inside")
	execIn(t, s, DefaultName, "mkdir", inside)
	execIn(t, s, DefaultName, "mount", "-t", "tmpfs", "none", inside)
	equal(t, strings.Contains(execIn(t, s, DefaultName, "cat", "/proc/self/mounts"), " "+inside+" "), want.Inside, "2")
	equal(t, hostSees(t, inside), want.InsideToHost, "3")
	if want.HostToInside {
		assert.NilError(t, unix.Unmount(host, 0), "the host's mount is busy inside")
		equal(t, strings.Contains(execIn(t, s, DefaultName, "cat", "/proc/self/mounts"), " "+host+" "), false, "unmounted")
	}
}

func TestCreateAgainReuses(t *testing.T) {
	onHost(t, sharedHost, func(t *testing.T, s *Store) {
		first, err := s.Create(Spec{Name: DefaultName})
		assert.NilError(t, err)
		equal(t, first.Reused, false, "reused")
		again, err := s.Create(Spec{DefaultName, Slave})
		assert.NilError(t, err)
		equal(t, again.Reused, true, "reused")
		equal(t, again.ID, first.ID, "another namespace")
		mounts, err := s.mountsAt(s.Pin(DefaultName))
		assert.NilError(t, err)
		equal(t, len(mounts), 1, "stacked")

		_, err = s.Create(Spec{DefaultName, Shared})
		assert.Check(t, is.Error(err, "create mount namespace kubens: it exists with propagation slave, but shared is requested"))
		list, err := s.List()
		assert.NilError(t, err)
		assert.DeepEqual(t, list, []Namespace{first.Namespace})

		second, err := s.Create(Spec{Name: "second"})
		assert.NilError(t, err)
		assert.Check(t, second.ID != first.ID)
		equal(t, second.Guarantees, first.Guarantees, "guarantees")
		dirs, err := s.mountsAt(s.dir)
		assert.NilError(t, err)
		equal(t, len(dirs), 1, "the directory is bound twice")
	})
}

func TestCreateAtOnceMakesOne(t *testing.T) {
	onHost(t, sharedHost, func(t *testing.T, s *Store) {
		const several = 4
		var cmds []*exec.Cmd
		gate, hold, err := os.Pipe()
		assert.NilError(t, err)
		for range several {
			cmd := helperCommand(t, s, "create", nil)
			cmd.Stdin, cmd.Stderr = gate, os.Stderr
			assert.NilError(t, cmd.Start())
			cmds = append(cmds, cmd)
		}
		assert.NilError(t, hold.Close())
		assert.NilError(t, gate.Close())
		for _, cmd := range cmds {
			assert.Check(t, cmd.Wait())
		}
		mounts, err := s.mountsAt(s.Pin(DefaultName))
		assert.NilError(t, err)
		equal(t, len(mounts), 1, "pins")
		dirs, err := s.mountsAt(s.dir)
		assert.NilError(t, err)
		equal(t, len(dirs), 1, "mounts of the directory")
	})
}

func TestLeftoverIsReplaced(t *testing.T) {
	onHost(t, sharedHost, func(t *testing.T, s *Store) {
		for _, text := range []string{"", "4:12345\n"} {
			assert.NilError(t, os.MkdirAll(s.dir, 0o755))
			assert.NilError(t, os.WriteFile(s.Pin(DefaultName), []byte(text), 0o600))
			list, err := s.List()
			assert.NilError(t, err)
			assert.DeepEqual(t, list, []Namespace{{Name: DefaultName, Pin: s.Pin(DefaultName), Fault: "nothing is pinned: stale file"}})
			_, err = s.Status(DefaultName)
			assert.Check(t, is.ErrorContains(err, "the file is stale"))
			assert.Check(t, is.ErrorContains(s.Exec(ExecOptions{Name: DefaultName, Argv: []string{"true"}}), "the file is stale"))
			c, err := s.Create(Spec{Name: DefaultName})
			assert.NilError(t, err)
			equal(t, c.Reused, false, "reused")
			assert.NilError(t, s.Delete(DefaultName, false))
		}
		assert.NilError(t, os.MkdirAll(s.dir, 0o755))
		assert.NilError(t, os.WriteFile(s.Pin(DefaultName), nil, 0o600))
		assert.NilError(t, s.Delete(DefaultName, false))
		_, err := os.Stat(s.dir)
		assert.Check(t, os.IsNotExist(err))
	})
}

// TestOthersPins checks that foreign mounts at the path of a pin are reported, and neither used nor covered.
func TestOthersPins(t *testing.T) {
	onHost(t, sharedHost, func(t *testing.T, s *Store) {
		_, err := s.Create(Spec{Name: "second"})
		assert.NilError(t, err)
		assert.NilError(t, os.WriteFile(s.Pin(DefaultName), nil, 0o600))
		assert.NilError(t, unix.Mount("/proc/self/ns/net", s.Pin(DefaultName), "", unix.MS_BIND, ""))
		_, err = s.Create(Spec{Name: DefaultName})
		assert.Check(t, is.ErrorContains(err, "pins a namespace of another type"))
		assert.NilError(t, unix.Unmount(s.Pin(DefaultName), 0))

		c, err := s.Create(Spec{Name: DefaultName})
		assert.NilError(t, err)
		second, state, err := s.openPin("second")
		assert.NilError(t, err)
		equal(t, state, pinned, "state")
		assert.NilError(t, unix.Mount(proc.FDPath(second), s.Pin(DefaultName), "", unix.MS_BIND, ""))
		assert.NilError(t, second.Close())
		_, err = s.Create(Spec{Name: DefaultName})
		assert.Check(t, is.ErrorContains(err, "2 mounts are stacked at "+s.Pin(DefaultName)+" ("+c.ID))
		_, err = s.Status(DefaultName)
		assert.Check(t, is.ErrorContains(err, "2 mounts are stacked"))
		list, err := s.List()
		assert.NilError(t, err)
		assert.Check(t, is.Contains(list[0].Fault, "2 mounts are stacked"))
		assert.NilError(t, s.Delete(DefaultName, false))
		assert.NilError(t, s.Delete("second", false))
		equal(t, hostSees(t, s.dir), false, "the directory's mount is left")
	})
}

func TestDeleteInUse(t *testing.T) {
	onHost(t, sharedHost, func(t *testing.T, s *Store) {
		_, err := s.Create(Spec{Name: DefaultName})
		assert.NilError(t, err)
		pid, stop := startLive(t, s, DefaultName, "resident")
		err = s.Delete(DefaultName, false)
		assert.Check(t, errors.Is(err, ErrInUse))
		assert.Check(t, is.Error(err, fmt.Sprintf("delete mount namespace kubens: mount namespace is in use: resident (%d)", pid)))
		list, err := s.List()
		assert.NilError(t, err)
		equal(t, list[0].Processes, 1, "processes")
		assert.NilError(t, s.Delete(DefaultName, true))
		assert.Check(t, errors.Is(s.Delete(DefaultName, true), ErrNotFound))
		stop()
		_, err = os.Stat(s.dir)
		assert.Check(t, os.IsNotExist(err))
		equal(t, hostSees(t, s.dir), false, "the directory's mount is left")
	})
}

func TestStatusNamesDaemonsOutside(t *testing.T) {
	onHost(t, sharedHost, func(t *testing.T, s *Store) {
		_, err := s.Create(Spec{Name: DefaultName})
		assert.NilError(t, err)
		inside, _ := startLive(t, s, DefaultName, "containerd")
		outside, stop := startLive(t, s, "", "kubelet")
		_, _ = startLive(t, s, "", "other")
		st, err := s.Status(DefaultName)
		assert.NilError(t, err)
		host, err := ownID()
		assert.NilError(t, err)
		assert.DeepEqual(t, st.Members, []Process{{inside, "containerd", st.ID, "containerd"}})
		assert.DeepEqual(t, st.Outside, []Process{{outside, "kubelet", host.String(), "kubelet"}})
		err = st.Err()
		assert.Check(t, is.Error(err, fmt.Sprintf("kubelet (pid %d) is not in mount namespace kubens but in %s", outside, host)))
		equal(t, errdefs.ExitCode(err), errdefs.ExitComponent, "exit code")
		stop()
		st, err = s.Status(DefaultName)
		assert.NilError(t, err)
		assert.NilError(t, st.Err())
	})
}

// TestDaemonNamespace checks that the kubelet of another node, in other namespaces, is ignored.
func TestDaemonNamespace(t *testing.T) {
	onHost(t, sharedHost, func(t *testing.T, s *Store) {
		others := filepath.Join(t.TempDir(), "kubelet")
		assert.NilError(t, os.Symlink(ownCopy(t), others))
		cmd := exec.Command(others)
		cmd.Env = append(os.Environ(), envHelper+"=live")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
		begin(t, cmd)
		path, err := DaemonNamespace("kubelet")
		assert.NilError(t, err)
		equal(t, path, "", "kubelet of another node")
		pid, _ := startLive(t, s, "", "kubelet")
		path, err = DaemonNamespace("kubelet")
		assert.NilError(t, err)
		equal(t, path, fmt.Sprintf("/proc/%d/ns/mnt", pid), "kubelet of this node")
	})
}

// TestBrokenInside checks that a mount that became private later is reported, with the lost guarantees.
func TestBrokenInside(t *testing.T) {
	onHost(t, sharedHost, func(t *testing.T, s *Store) {
		_, err := s.Create(Spec{Name: DefaultName})
		assert.NilError(t, err)
		execIn(t, s, DefaultName, "mount", "--make-private", os.Getenv(envHost))
		st, err := s.Status(DefaultName)
		assert.NilError(t, err)
		equal(t, st.Guarantees, Guarantees{}, "guarantees")
		dir := filepath.Dir(s.dir)
		assert.Check(t, is.DeepEqual(st.Reasons, []string{
			"1: the mounts should propagate, but a test mount in " + dir + " is not visible",
			"2: the mounts should propagate, but a test mount in " + dir + " is not visible",
		}))
		narrow := New(Options{Dir: s.dir, Paths: []string{dir}})
		st, err = narrow.Status(DefaultName)
		assert.NilError(t, err)
		assert.Check(t, is.Len(st.Reasons, 2))
		assert.Check(t, is.Contains(st.Reasons[0], "1: the mount of "+os.Getenv(envHost)+" inside does not receive"))
		assert.Check(t, is.Contains(st.Reasons[1], "2: the mount of "+os.Getenv(envHost)+" inside is private"))
	})
}

func TestVisibleNeedsSharedHost(t *testing.T) {
	onHost(t, privateHost, func(t *testing.T, s *Store) {
		_, err := s.Create(Spec{DefaultName, Shared})
		assert.Check(t, is.Error(err, "create mount namespace kubens: the host's root is private: mounts do not propagate in either direction"))
		equal(t, errdefs.ExitCode(err), errdefs.ExitPreflight, "exit code")
		_, err = os.Stat(s.dir)
		assert.Check(t, os.IsNotExist(err), "files remain after the error")
	})
}

// TestHostSharedAfterwards checks that a namespace created before the host's root became shared does not count as slave.
func TestHostSharedAfterwards(t *testing.T) {
	onHost(t, privateHost, func(t *testing.T, s *Store) {
		_, err := s.Create(Spec{Name: DefaultName})
		assert.NilError(t, err)
		assert.NilError(t, unix.Mount("none", "/", "", unix.MS_REC|unix.MS_SHARED, ""))
		_, err = s.Create(Spec{Name: DefaultName})
		assert.Check(t, is.ErrorContains(err, "it exists with propagation private, but slave is requested"))
	})
}

func TestFromInside(t *testing.T) {
	onHost(t, sharedHost, func(t *testing.T, s *Store) {
		_, err := s.Create(Spec{Name: DefaultName})
		assert.NilError(t, err)
		exe := ownCopy(t)
		for _, what := range []string{"create", "create-here", "delete-here", "status"} {
			cmd := helperCommand(t, s, "exec", []string{"NS=" + DefaultName}, "/usr/bin/env", envHelper+"="+what, exe)
			out, err := cmd.CombinedOutput()
			assert.Check(t, is.ErrorContains(err, "exit status 3"), what)
			assert.Check(t, is.Contains(string(out), "this process is itself in mount namespace kubens"), what)
		}
		// Exec from inside runs the program in the same namespace.
		out := execIn(t, s, DefaultName, "/usr/bin/env", envHelper+"=exec", "NS="+DefaultName, exe, "readlink", "/proc/self/ns/mnt")
		list, err := s.List()
		assert.NilError(t, err)
		equal(t, out, list[0].ID, "namespace")
	})
}

// TestUnprivileged checks the hint for an ordinary user.
func TestUnprivileged(t *testing.T) {
	testutil.Require(t, testutil.OrdinaryUser)
	s := New(Options{Dir: filepath.Join(t.TempDir(), "mountns")})
	_, err := s.Create(Spec{Name: DefaultName})
	equal(t, errdefs.ExitCode(err), errdefs.ExitPreflight, fmt.Sprint(err))
	assert.Check(t, is.Contains(strings.Join(errdefs.ReportOf(err).Hints, ""), "root"))
}

func TestNamesAndPropagation(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "-a", "a-", "A", "a/b", "..", "a.b", strings.Repeat("a", 33)} {
		equal(t, errdefs.ExitCode(CheckName(name)), errdefs.ExitConfig, name)
		_, err := New(Options{}).Create(Spec{Name: name})
		equal(t, errdefs.ExitCode(err), errdefs.ExitConfig, name)
		equal(t, errdefs.ExitCode(New(Options{}).Delete(name, true)), errdefs.ExitConfig, name)
	}
	for _, name := range []string{"a", "kubens", "a-1", strings.Repeat("a", 32)} {
		assert.Check(t, CheckName(name))
	}
	p, err := ParsePropagation("")
	assert.Check(t, err)
	equal(t, p, Slave, "default")
	_, err = ParsePropagation("rslave")
	equal(t, errdefs.ExitCode(err), errdefs.ExitConfig, "rslave")
}
