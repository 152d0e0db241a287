package hostsetup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/golden"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// fakeHost is a fake host below a directory. It records commands instead of running them.
type fakeHost struct {
	t        *testing.T
	root     string
	o        Options
	commands []string
	// fail makes a program fail.
	fail string
}

// newHost returns a host on which every step is needed for the account dev. Its files belong to the user that runs the test, so dev
// has that uid.
func newHost(t *testing.T, systemd bool) *fakeHost {
	t.Helper()
	f := &fakeHost{t: t, root: t.TempDir()}
	uid, gid := os.Getuid(), os.Getgid()
	if uid == 0 {
		uid, gid = 54321, 54321
	}
	for path, text := range map[string]string{
		"etc/os-release":                               "ID=debian\n",
		"etc/passwd":                                   fmt.Sprintf("root:x:0:0::/root:/bin/sh\ndev:x:%d:%d::/home/dev:/bin/sh\n", uid, gid),
		"etc/subuid":                                   "other:100000:65536\nother2:231072:65536", // no newline at the end
		"proc/sys/kernel/osrelease":                    "6.1.0-30-amd64\n",
		"proc/sys/fs/inotify/max_user_instances":       "128\n",
		"proc/sys/fs/inotify/max_user_watches":         "1000000\n",
		"proc/sys/user/max_user_namespaces":            "0\n",
		"proc/sys/net/ipv4/ip_unprivileged_port_start": "1024\n",
		"proc/modules":                                 "overlay 163840 0 - Live 0x0\n",
		"lib/modules/6.1.0-30-amd64/modules.dep":       "kernel/drivers/net/tun.ko:\nkernel/fs/overlayfs/overlay.ko:\nkernel/net/br-netfilter.ko.xz: x.ko\n",
		"dev/net/tun":                                  "",
		"bin/bash":                                     "",
		"cgroup/.keep":                                 "",
		"proc/self/mountinfo":                          "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n30 21 0:26 / " + f.root + "/cgroup rw - cgroup2 cgroup2 rw\n",
		"proc/self/cgroup":                             "0::/\n",
	} {
		f.write(path, text)
	}
	if systemd {
		f.write("run/systemd/system/.keep", "")
	}
	assert.NilError(t, os.Chmod(f.path("dev/net/tun"), 0o600))
	f.o = Options{
		User: "dev", Root: f.root, Exe: "/usr/local/bin/rootlessnode",
		EUID:     func() int { return 0 },
		RootOnly: func(string) error { return nil },
		LookPath: func(program string) string {
			if program == "slirp4netns" || program == "getent" {
				return ""
			}
			return "/sbin/" + program
		},
		Run: func(_ context.Context, program string, args ...string) error {
			line := strings.ReplaceAll(strings.Join(append([]string{filepath.Base(program)}, args...), " "), f.root, "")
			f.commands = append(f.commands, line)
			if f.fail != "" && strings.HasPrefix(line, f.fail) {
				return errors.New("no, says " + f.fail)
			}
			f.effect(line)
			return nil
		},
		Cgroups: cgroupv2.Options{MountInfo: f.path("proc/self/mountinfo"), ProcSelfCgroup: f.path("proc/self/cgroup")},
	}
	return f
}

// effect makes the changes to files that the recorded command would make.
func (f *fakeHost) effect(line string) {
	switch words := strings.Fields(line); words[0] {
	case "modprobe":
		f.append("proc/modules", words[1]+" 1 0 - Live 0x0\n")
	case "loginctl":
		mark := "var/lib/systemd/linger/" + words[2]
		if _, err := os.Stat(f.path("run/systemd/system")); err != nil {
			mark = "var/lib/elogind/linger/" + words[2]
		}
		if words[1] == "enable-linger" {
			f.write(mark, "")
		} else {
			f.remove(mark)
		}
	case "rc-update":
		f.write("etc/runlevels/"+words[3]+"/"+words[2], "")
	case "lxc-net", "systemctl":
		switch {
		case slices.Contains(words, "restart"):
			f.write("sys/class/net/lxcbr0/bridge/stp_state", "0")
		case slices.Contains(words, "stop"), slices.Contains(words, "disable"):
			f.remove("sys/class/net/lxcbr0")
		}
	case "useradd":
		f.append("etc/passwd", words[len(words)-1]+":x:54330:54330::/home/x:/bin/sh\n")
		f.append("etc/subuid", "\n"+words[len(words)-1]+":700000:65536\n")
		f.append("etc/subgid", words[len(words)-1]+":700000:65536\n")
	case "userdel":
		b, err := os.ReadFile(f.path("etc/passwd"))
		assert.NilError(f.t, err)
		kept := slices.DeleteFunc(strings.SplitAfter(string(b), "\n"), func(l string) bool { return strings.HasPrefix(l, words[1]+":") })
		f.write("etc/passwd", strings.Join(kept, ""))
	}
}

func (f *fakeHost) path(p string) string { return filepath.Join(f.root, p) }

func (f *fakeHost) write(path, text string) {
	f.t.Helper()
	assert.NilError(f.t, os.MkdirAll(filepath.Dir(f.path(path)), 0o755))
	assert.NilError(f.t, os.WriteFile(f.path(path), []byte(text), 0o644))
}

func (f *fakeHost) append(path, text string) {
	f.t.Helper()
	b, err := os.ReadFile(f.path(path))
	if !errors.Is(err, os.ErrNotExist) {
		assert.NilError(f.t, err)
	}
	f.write(path, string(b)+text)
}

func (f *fakeHost) read(path string) string {
	f.t.Helper()
	b, err := os.ReadFile(f.path(path))
	assert.NilError(f.t, err)
	return string(b)
}

func (f *fakeHost) remove(path string) {
	f.t.Helper()
	assert.NilError(f.t, os.RemoveAll(f.path(path)))
}

// plan returns NewPlan without the cgroup step if there is no systemd, because it needs a real cgroup tree.
func (f *fakeHost) plan() *Plan {
	f.t.Helper()
	p, err := NewPlan(f.o)
	assert.NilError(f.t, err)
	p.Steps = slices.DeleteFunc(p.Steps, func(s Step) bool { return s.Name == "cgroup" && !p.env.systemd })
	return p
}

// outcomes runs a plan and returns "step: outcome" for each step.
func outcomes(do func(context.Context, func(Result)) error, t *testing.T) ([]string, error) {
	var out []string
	err := do(t.Context(), func(r Result) { out = append(out, r.Step.Name+": "+string(r.Outcome)) })
	return out, err
}

// tree lists the files of the host with their text and mode.
func (f *fakeHost) tree() map[string]string {
	out := map[string]string{}
	assert.NilError(f.t, filepath.WalkDir(f.root, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		b, err := os.ReadFile(path)
		out[strings.TrimPrefix(path, f.root)] = st.Mode().String() + " " + strings.TrimRight(string(b), "\n")
		return err
	}))
	return out
}

func TestSetupTwiceAndUndo(t *testing.T) {
	t.Parallel()
	for _, systemd := range []bool{true, false} {
		t.Run(fmt.Sprintf("systemd=%v", systemd), func(t *testing.T) {
			t.Parallel()
			f := newHost(t, systemd)
			before := f.tree()
			want := []string{"subids: done", "packages: manual", "modules: done", "sysctl: done", "tun: done"}
			if systemd {
				want = append(want, "cgroup: done", "linger: done")
			} else {
				want = append(want, "runtime-dir: done")
			}
			got, err := outcomes(f.plan().Run, t)
			assert.NilError(t, err)
			assert.DeepEqual(t, got, want)

			after := f.tree()
			assert.Equal(t, f.read("etc/subuid"), "other:100000:65536\nother2:231072:65536\ndev:165536:65536\n")
			assert.Equal(t, f.read("etc/subgid"), "dev:165536:65536\n")
			assert.Equal(t, f.read("proc/sys/fs/inotify/max_user_instances"), "512")
			assert.Equal(t, f.read("proc/sys/fs/inotify/max_user_watches"), "1000000\n", "a sufficient value must not change")
			assert.Equal(t, f.read("etc/sysctl.d/99-rootlessnode.conf"),
				marker+"fs.inotify.max_user_instances = 512\nuser.max_user_namespaces = 28633\n")
			assert.Equal(t, f.read("etc/modules-load.d/rootlessnode.conf"), marker+"tun\noverlay\nbr_netfilter\n")
			st, err := os.Stat(f.path("dev/net/tun"))
			assert.NilError(t, err)
			assert.Equal(t, st.Mode().Perm(), os.FileMode(0o666))
			commands := []string{"modprobe tun", "modprobe br_netfilter"}
			if systemd {
				commands = append(commands, "systemctl daemon-reload", "loginctl enable-linger dev")
				assert.Equal(t, f.read("etc/systemd/system/user@.service.d/delegate.conf"),
					marker+"[Service]\nDelegate=cpu cpuset io memory pids\n")
			}
			assert.DeepEqual(t, f.commands, commands)

			// A second run changes nothing.
			f.commands = nil
			got, err = outcomes(f.plan().Run, t)
			assert.NilError(t, err)
			for _, line := range got {
				assert.Assert(t, strings.HasSuffix(line, ": already") || line == "packages: manual", line)
			}
			assert.Equal(t, len(f.commands), 0, "%v", f.commands)
			assert.DeepEqual(t, f.tree(), after)

			// Undo.
			_, err = outcomes(f.plan().Undo, t)
			assert.NilError(t, err)
			got2 := f.tree()
			delete(got2, "/proc/modules")  // loaded modules stay
			delete(got2, "/etc/.pwd.lock") // lckpwdf(3) does not remove it
			delete(before, "/proc/modules")
			assert.Equal(t, strings.TrimSpace(f.read("etc/subgid")), "")
			delete(got2, "/etc/subgid")
			assert.DeepEqual(t, got2, before)
			_, err = os.Stat(f.path(RecordDir))
			assert.ErrorIs(t, err, os.ErrNotExist)
			got, err = outcomes(f.plan().Undo, t)
			assert.NilError(t, err)
			for _, line := range got {
				assert.Assert(t, strings.HasSuffix(line, ": already"), line)
			}
		})
	}
}

// TestExecutableOfTheAccount checks that steps which would write a path that an account can replace are refused with a hint, and
// that the other steps are done.
func TestExecutableOfTheAccount(t *testing.T) {
	t.Parallel()
	f := newHost(t, false)
	f.write("run/openrc/softlevel", "default")
	f.write("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n")
	f.o.Exe = "/home/dev/bin/rootlessnode"
	f.o.RootOnly = func(path string) error {
		return &hostinfo.NotRootOnlyError{Path: path, At: "/home/dev", Reason: "belongs to uid 1000"}
	}
	script, err := f.plan().Script()
	assert.NilError(t, err)
	refusal := "refused: /home/dev/bin/rootlessnode can be replaced: /home/dev belongs to uid 1000; install below /usr/local first\n"
	assert.Equal(t, strings.Count(script, refusal), 2, script)
	for line := range strings.Lines(script) {
		assert.Assert(t, strings.HasPrefix(line, "#") || !strings.Contains(line, "/home/dev/bin"), line)
	}

	got, err := outcomes(f.plan().Run, t)
	for _, step := range []string{"boot", "apparmor"} {
		assert.Assert(t, slices.Contains(got, step+": refused"), got)
		assert.ErrorContains(t, err, "host setup: "+step+": /home/dev/bin/rootlessnode can be replaced")
	}
	assert.Assert(t, slices.Contains(got, "runtime-dir: done"), got)
	assert.ErrorIs(t, err, errdefs.ErrPreflight)
	hints := errdefs.ReportOf(err).Hints
	assert.Equal(t, len(hints), 1)
	assert.Assert(t, strings.HasPrefix(hints[0], "# install below /usr/local first"), hints[0])
	assert.Assert(t, strings.HasSuffix(hints[0], "\nas root, prepare the host for the account dev"), hints[0])
	for _, path := range []string{"etc/local.d/rootlessnode-dev.start", "etc/apparmor.d/home.dev.bin.rootlessnode"} {
		_, err = os.Stat(f.path(path))
		assert.ErrorIs(t, err, os.ErrNotExist)
	}
}

// TestOpenRC checks that the setup is repeated at each boot, and that elogind does not remove the runtime directory.
func TestOpenRC(t *testing.T) {
	t.Parallel()
	f := newHost(t, false)
	f.write("run/openrc/softlevel", "default")
	f.write("run/systemd/seats/seat0", "")
	f.write("lib/elogind/elogind", "")
	got, err := outcomes(f.plan().Run, t)
	assert.NilError(t, err)
	for _, want := range []string{"linger: done", "runtime-dir: done", "boot: done"} {
		assert.Assert(t, slices.Contains(got, want), "%v does not contain %s", got, want)
	}
	const script = "etc/local.d/rootlessnode-dev.start"
	assert.Equal(t, f.read(script), "#!/bin/sh\n"+marker+"exec /usr/local/bin/rootlessnode host setup --user dev\n")
	st, err := os.Stat(f.path(script))
	assert.NilError(t, err)
	assert.Equal(t, st.Mode().Perm(), os.FileMode(0o755), "OpenRC runs what is executable")
	assert.DeepEqual(t, f.commands[len(f.commands)-2:], []string{"loginctl enable-linger dev", "rc-update add local default"})

	f.commands = nil
	got, err = outcomes(f.plan().Run, t)
	assert.NilError(t, err)
	assert.Assert(t, slices.Contains(got, "boot: already") && slices.Contains(got, "linger: already"), "%v", got)
	assert.Equal(t, len(f.commands), 0, "%v", f.commands)
	assert.NilError(t, os.Chmod(f.path(script), 0o644))
	text, err := f.plan().Script()
	assert.NilError(t, err)
	assert.Assert(t, strings.Contains(text, "chmod 0755 /etc/local.d/rootlessnode-dev.start") && !strings.Contains(text, "rc-update"), text)

	_, err = outcomes(f.plan().Undo, t)
	assert.NilError(t, err)
	_, err = os.Stat(f.path(script))
	assert.ErrorIs(t, err, os.ErrNotExist)
	assert.Assert(t, slices.Contains(f.commands, "loginctl disable-linger dev"), "%v", f.commands)
}

// TestNoElogind checks that /run/systemd/seats without the elogind program does not count as elogind.
func TestNoElogind(t *testing.T) {
	t.Parallel()
	f := newHost(t, false)
	f.write("run/systemd/seats/seat0", "")
	got, err := outcomes(f.plan().Run, t)
	assert.NilError(t, err)
	assert.Assert(t, !strings.Contains(strings.Join(got, " "), "linger"), "%v", got)
}

// TestUndoKeepsForeignChanges checks that undo does not revert changes that other accounts need or that were modified since.
func TestUndoKeepsForeignChanges(t *testing.T) {
	t.Parallel()
	f := newHost(t, true)
	_, err := outcomes(f.plan().Run, t)
	assert.NilError(t, err)

	second := *f
	second.o.User = "two"
	f.append("etc/passwd", "two:x:54322:54322::/home/two:/bin/sh\n")
	_, err = outcomes(second.plan().Run, t)
	assert.NilError(t, err)
	assert.Equal(t, f.read("etc/subgid"), "dev:165536:65536\ntwo:296608:65536\n")

	f.write("etc/sysctl.d/99-rootlessnode.conf", "mine = 1\n")
	f.write("proc/sys/user/max_user_namespaces", "5\n")
	_, err = outcomes(f.plan().Undo, t)
	assert.ErrorContains(t, err, "/etc/sysctl.d/99-rootlessnode.conf was changed since host setup: not removed")
	assert.Equal(t, f.read("etc/sysctl.d/99-rootlessnode.conf"), "mine = 1\n")
	assert.Equal(t, f.read("proc/sys/user/max_user_namespaces"), "5\n")
	assert.Equal(t, f.read("proc/sys/fs/inotify/max_user_instances"), "128")
	assert.Equal(t, f.read("etc/subgid"), "two:296608:65536\n")
	assert.Assert(t, f.plan().record.has("sysctl"), "a step that could not be undone must stay recorded")
}

func TestSharedFilesStayForTheOther(t *testing.T) {
	t.Parallel()
	f := newHost(t, true)
	_, err := outcomes(f.plan().Run, t)
	assert.NilError(t, err)
	// The second account's setup changes the shared file and therefore uses it.
	f.append("etc/passwd", "two:x:54322:54322::/home/two:/bin/sh\n")
	second := *f
	second.o.User, second.o.PortStart = "two", 80
	_, err = outcomes(second.plan().Run, t)
	assert.NilError(t, err)
	assert.Equal(t, f.read("proc/sys/net/ipv4/ip_unprivileged_port_start"), "80")
	text := marker + "fs.inotify.max_user_instances = 512\nnet.ipv4.ip_unprivileged_port_start = 80\nuser.max_user_namespaces = 28633\n"
	assert.Equal(t, f.read("etc/sysctl.d/99-rootlessnode.conf"), text)
	_, err = outcomes(f.plan().Undo, t)
	assert.NilError(t, err)
	assert.Equal(t, f.read("etc/sysctl.d/99-rootlessnode.conf"), text)
	_, err = outcomes(second.plan().Undo, t)
	assert.NilError(t, err)
	_, err = os.Stat(f.path("etc/sysctl.d/99-rootlessnode.conf"))
	assert.ErrorIs(t, err, os.ErrNotExist)
}

func TestStopsAtTheFirstFailure(t *testing.T) {
	t.Parallel()
	f := newHost(t, true)
	f.fail = "modprobe br_netfilter"
	got, err := outcomes(f.plan().Run, t)
	assert.Error(t, err, "host setup: modules: modprobe br_netfilter: no, says modprobe br_netfilter")
	assert.DeepEqual(t, got, []string{"subids: done", "packages: manual", "modules: failed"})
	assert.Assert(t, f.plan().record.has("subids"), "completed steps must be recorded")

	f.fail = ""
	got, err = outcomes(f.plan().Run, t)
	assert.NilError(t, err)
	assert.DeepEqual(t, got[:3], []string{"subids: already", "packages: manual", "modules: done"})
}

func TestCreateUser(t *testing.T) {
	t.Parallel()
	f := newHost(t, true)
	f.o.User = "fresh"
	_, err := NewPlan(f.o)
	assert.Error(t, err, "user fresh does not exist")
	assert.ErrorIs(t, err, errdefs.ErrConfig)

	f.o.CreateUser = true
	script, err := f.plan().Script()
	assert.NilError(t, err)
	assert.Assert(t, strings.Contains(script, "\nuseradd --create-home --shell /bin/bash fresh\n"), script)
	got, err := outcomes(f.plan().Run, t)
	assert.NilError(t, err)
	assert.DeepEqual(t, got[:2], []string{"account: done", "subids: already"}) // useradd added them

	// Undo removes the account because it is recorded, without an option.
	f.o.CreateUser = false
	_, err = outcomes(f.plan().Undo, t)
	assert.NilError(t, err)
	assert.Assert(t, slices.Contains(f.commands, "userdel fresh"))
	assert.Assert(t, !strings.Contains(f.read("etc/subuid"), "fresh"))
}

func TestNewPlanRefuses(t *testing.T) {
	t.Parallel()
	for user, want := range map[string]string{
		"":          `user "": not a valid account name`,
		"a/b":       `user "a/b": not a valid account name`,
		"-x":        `user "-x": not a valid account name`,
		"a:b":       `user "a:b": not a valid account name`,
		"a\nb":      `user "a\nb": not a valid account name`,
		"..":        `user "..": not a valid account name`,
		"$(reboot)": `user $(reboot) does not exist`,
		"0":         "user 0 is root: a node must be run by an ordinary user",
		"root":      "user root is root: a node must be run by an ordinary user",
	} {
		f := newHost(t, true)
		f.o.User = user
		_, err := NewPlan(f.o)
		assert.Error(t, err, want)
		assert.ErrorIs(t, err, errdefs.ErrConfig)
	}
}

// A quota of namespaces is raised if it is too low for the pods of a node, and otherwise kept.
func TestNamespaceQuotas(t *testing.T) {
	t.Parallel()
	f := newHost(t, true)
	f.write("proc/sys/user/max_net_namespaces", "100\n")
	f.write("proc/sys/user/max_pid_namespaces", "3800\n")
	_, err := outcomes(f.plan().Run, t)
	assert.NilError(t, err)
	assert.Equal(t, f.read("proc/sys/user/max_net_namespaces"), "28633")
	assert.Equal(t, f.read("proc/sys/user/max_pid_namespaces"), "3800\n")
	_, err = outcomes(f.plan().Undo, t)
	assert.NilError(t, err)
	assert.Equal(t, f.read("proc/sys/user/max_net_namespaces"), "100")
}

// Every account of passwd can be set up, also those of directory services. The script quotes its name.
func TestUnusualAccountNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{`dom\u1`, "u1@dom.example", "müller", "my user", "x;touch HURT", "$(touch HURT)", "it's"} {
		f := newHost(t, true)
		f.write("etc/passwd", f.read("etc/passwd")+name+":x:2345:2345::/home/x:/bin/sh\n")
		f.o.User = name
		script, err := f.plan().Script()
		assert.NilError(t, err, name)
		_, err = outcomes(f.plan().Run, t)
		assert.NilError(t, err, name)
		assert.Assert(t, strings.Contains(f.read("etc/subuid"), "\n"+name+":") || strings.HasPrefix(f.read("etc/subuid"), name+":"), f.read("etc/subuid"))
		assert.Assert(t, slices.Contains(f.commands, "loginctl enable-linger "+name), "%v", f.commands)
		_, err = outcomes(f.plan().Run, t)
		assert.NilError(t, err, name)
		_, err = outcomes(f.plan().Undo, t)
		assert.NilError(t, err, name)
		assert.Assert(t, !strings.Contains(f.read("etc/subuid"), name+":"), f.read("etc/subuid"))

		for line := range strings.Lines(script) {
			if !strings.HasPrefix(line, "#") && strings.Contains(line, name) {
				assert.Assert(t, strings.Contains(line, hostinfo.Quote(name)) || strings.Contains(line, "'"+name+":"), line)
			}
		}
	}
}

// A uid or another spelling of the name is not the name of the account.
func TestAccountByAnotherName(t *testing.T) {
	t.Parallel()
	f := newHost(t, true)
	f.write("etc/passwd", "dev:x:2345:2345::/home/x:/bin/sh\n")
	f.o.User = "2345"
	_, err := NewPlan(f.o)
	assert.Error(t, err, `user "2345": use the name of the account, "dev"`)
	f.o.User, f.o.CreateUser = "my user", true
	_, err = NewPlan(f.o)
	assert.Error(t, err, `user "my user": useradd does not accept this name for a new account`)
}

func TestOnlyRoot(t *testing.T) {
	t.Parallel()
	f := newHost(t, true)
	f.o.EUID = func() int { return 1000 }
	before := f.tree()
	_, err := outcomes(f.plan().Run, t)
	assert.Error(t, err, "host setup: only root can do this")
	assert.ErrorIs(t, err, errdefs.ErrPreflight)
	_, err = outcomes(f.plan().Undo, t)
	assert.Error(t, err, "host undo: only root can do this")
	assert.DeepEqual(t, f.tree(), before)
}

func TestSubids(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, subuid, subgid string
		count                int64
		wantUID, wantGID     string // the row added
		fail                 string
	}{
		{"none", "", "", 0, "dev:100000:65536", "dev:100000:65536", ""},
		{"more wanted", "dev:100000:65536\n", "dev:100000:65536\n", 131072, "dev:165536:65536", "dev:165536:65536", ""},
		{"by uid", "54321:100000:65536\nUID:200000:65536\n", "dev:1:65536\n", 0, "", "", ""},
		{"between others", "a:165536:65536\n", "b:265536:65536\n", 65536, "dev:100000:65536", "dev:100000:65536", ""},
		{"a gap too small", "a:100000:10\nb:100100:65536\n", "", 65536, "dev:165636:65536", "dev:165636:65536", ""},
		{"one file only", "dev:300000:65536\n", "", 0, "", "dev:100000:65536", ""},
		{"unreadable", "dev\n", "", 0, "", "", "/etc/subuid line 1 (dev) is not NAME:START:COUNT"},
		{"full", "a:100000:600000000\n", "", 0, "", "", "/etc/subuid: no free range of 65536 ids"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := newHost(t, true)
			a, _, err := hostinfo.Lookup(t.Context(), f.root, "dev", "")
			assert.NilError(t, err)
			f.write("etc/subuid", strings.ReplaceAll(tc.subuid, "UID", strconv.Itoa(a.UID)))
			f.write("etc/subgid", tc.subgid)
			f.o.SubidCount = tc.count
			e := newEnv(f.o)
			rows, err := e.missingRows(t.Context())
			if tc.fail != "" {
				assert.ErrorContains(t, err, tc.fail[len("/etc/subuid"):])
				return
			}
			assert.NilError(t, err)
			assert.Equal(t, rows[hostinfo.SubuidFile], tc.wantUID)
			assert.Equal(t, rows[hostinfo.SubgidFile], tc.wantGID)
		})
	}
}

func TestDelegationByOthers(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"[Service]\nDelegate=yes\n":                              true,
		"[Service]\nDelegate=pids memory\nDelegate=cpu cpuset\n": true,
		"[Service]\nDelegate=cpu cpuset io memory pids\n":        true,
		"[Service]\nDelegate=pids memory cpu\n":                  false,
		"[Service]\n#Delegate=yes\n":                             false,
		"[Service]\nDelegate=no\n":                               false,
	} {
		f := newHost(t, true)
		f.write("etc/systemd/system/user@.service.d/delegate.conf", text)
		assert.Equal(t, delegates(newEnv(f.o)), want, text)
		if !want {
			// The administrator's file is kept; host setup writes another one next to it.
			_, err := outcomes(f.plan().Run, t)
			assert.NilError(t, err)
			assert.Equal(t, f.read("etc/systemd/system/user@.service.d/delegate.conf"), text)
			assert.Assert(t, delegates(newEnv(f.o)))
		}
	}
}

func TestAppArmorProfile(t *testing.T) {
	t.Parallel()
	f := newHost(t, true)
	f.write("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n")
	got, err := outcomes(f.plan().Run, t)
	assert.NilError(t, err)
	assert.Assert(t, slices.Contains(got, "apparmor: done"))
	assert.Assert(t, slices.Contains(f.commands, "apparmor_parser --replace /etc/apparmor.d/usr.local.bin.rootlessnode"), f.commands)
	assert.Assert(t, strings.Contains(f.read("etc/apparmor.d/usr.local.bin.rootlessnode"), "userns,"))
	_, err = outcomes(f.plan().Undo, t)
	assert.NilError(t, err)
	_, err = os.Stat(f.path("etc/apparmor.d/usr.local.bin.rootlessnode"))
	assert.ErrorIs(t, err, os.ErrNotExist)
}

// TestScriptDoesTheSame checks that the script of --dry-run, run by a shell in the directory of the fake host, has the same effect
// on files as Run.
func TestScriptDoesTheSame(t *testing.T) {
	t.Parallel()
	for _, systemd := range []bool{true, false} {
		t.Run(fmt.Sprintf("systemd=%v", systemd), func(t *testing.T) {
			t.Parallel()
			f := newHost(t, systemd)
			before := f.tree()
			script, err := f.plan().Script()
			assert.NilError(t, err)
			assert.DeepEqual(t, f.tree(), before)
			id := strconv.Itoa(os.Getuid())
			if id == "0" {
				id = "54321"
			}
			golden.Assert(t, strings.ReplaceAll(strings.ReplaceAll(script, f.root, ""), id, "UID"), fmt.Sprintf("script-systemd-%v.sh", systemd))

			// Redirect absolute paths into the directory, and replace programs by functions.
			script = strings.NewReplacer("/etc/", f.root+"/etc/", "/dev/net", f.root+"/dev/net", "/run/user", f.root+"/run/user").Replace(script)
			stubs := "modprobe() { :; }; systemctl() { :; }; loginctl() { :; }; sysctl() { :; }\n" +
				"usermod() { f=" + f.root + "/etc/${1#--add-}; f=${f%s}; [ ! -s $f ] || [ -z \"$(tail -c 1 $f)\" ] || echo >>$f; echo $3:${2%-*}:$((${2#*-} - ${2%-*} + 1)) >>$f; }\n"
			out, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", stubs+script).CombinedOutput()
			assert.NilError(t, err, "%s", out)
			byScript := f.tree()

			g := newHost(t, systemd)
			_, err = outcomes(g.plan().Run, t)
			assert.NilError(t, err)
			byRun := g.tree()
			for path, text := range byRun {
				if path != "/etc/.pwd.lock" && strings.HasPrefix(path, "/etc/") || strings.HasPrefix(path, "/dev/") {
					assert.Equal(t, byScript[path], text, path)
				}
			}
		})
	}
}
