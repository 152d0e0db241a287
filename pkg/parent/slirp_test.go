package parent

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/rootless-containers/rootlesskit/v3/pkg/messages"
	"github.com/rootless-containers/rootlesskit/v3/pkg/network"
	"github.com/sirupsen/logrus"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// refusing is a network driver that does not start with a strict confinement, like slirp4netns in a container.
type refusing struct {
	network.ParentDriver
	way, can confinement
	out      io.Writer
}

func (d refusing) ConfigureNetwork(int, string, string) (*messages.ParentInitNetworkDriverCompleted, func() error, error) {
	done := func() error { return nil }
	if d.way.sandbox && !d.can.sandbox {
		_, _ = fmt.Fprintln(d.out, "cannot pivot_root to /tmp\ncreate_sandbox failed")
		return nil, done, errors.New("slirp4netns failed")
	}
	if d.way.seccomp && !d.can.seccomp {
		_, _ = fmt.Fprintln(d.out, "enable_seccomp failed")
		return nil, done, errors.New("slirp4netns failed")
	}
	return &messages.ParentInitNetworkDriverCompleted{Dev: tapName}, done, nil
}

func TestSlirpFallsBack(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name             string
		sandbox, seccomp config.AutoBool
		can, got         confinement
		attempts         int
		warning, err     string
	}{
		{name: "all", can: confinement{true, true}, got: confinement{true, true}, attempts: 1},
		{name: "no mounts", can: confinement{false, true}, got: confinement{false, true}, attempts: 2,
			warning: "slirp4netns runs without its sandbox: slirp4netns failed: cannot pivot_root to /tmp; create_sandbox failed"},
		{name: "no seccomp", can: confinement{true, false}, got: confinement{true, false}, attempts: 3,
			warning: "slirp4netns runs without its seccomp filter: slirp4netns failed: enable_seccomp failed"},
		{name: "nothing", attempts: 4,
			warning: "slirp4netns runs without its sandbox and its seccomp filter: slirp4netns failed: cannot pivot_root to /tmp; create_sandbox failed"},
		{name: "off", sandbox: config.Off, seccomp: config.Off, can: confinement{true, true}, attempts: 1},
		{name: "insisted", sandbox: config.On, can: confinement{false, true}, attempts: 2, err: "start slirp4netns: slirp4netns failed: cannot pivot_root"},
		{name: "insisted and possible", sandbox: config.On, can: confinement{true, false}, got: confinement{true, false}, attempts: 2,
			warning: "slirp4netns runs without its seccomp filter: slirp4netns failed: enable_seccomp failed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			var tried []confinement
			removed := 0
			log := logrus.New()
			log.SetOutput(io.Discard)
			d := &slirp{
				ways: confinements(config.Network{SlirpSandbox: tc.sandbox, SlirpSeccomp: tc.seccomp}), out: io.Discard, log: log,
				newDriver: func(w io.Writer, c confinement) (network.ParentDriver, error) {
					tried = append(tried, c)
					return refusing{way: c, can: tc.can, out: w}, nil
				},
				removeTap: func(int) error { removed++; return nil },
			}
			_, cleanup, err := d.ConfigureNetwork(1, "", "")
			assert.Check(t, is.Len(tried, tc.attempts))
			assert.Check(t, is.Equal(removed, tc.attempts-1), "the device of each failed attempt must be removed")
			if tc.err != "" {
				assert.ErrorContains(t, err, tc.err)
				assert.ErrorIs(t, err, errdefs.ErrPreflight)
				return
			}
			assert.NilError(t, err)
			assert.NilError(t, cleanup())
			assert.Equal(t, tried[len(tried)-1], tc.got)
			assert.Equal(t, strings.Join(d.Warnings(), "\n"), tc.warning)
		})
	}
}

func TestInsideSandbox(t *testing.T) {
	t.Parallel()
	for target, fault := range map[string]string{
		"":                                      "",
		"../run/systemd/resolve/stub":           "",
		"/run/systemd/resolve/stub":             "",
		"other":                                 "",
		"resolvconf/run/resolv.conf":            "", // resolvconf/run is a link to /run/resolvconf
		"/run/missing":                          "",
		"/var/run/systemd/resolve/stub":         "/var",
		"../usr/share/resolv.conf":              "/usr",
		"/etc/../etc/other":                     "",
		"/run/../var/lib/x":                     "/var",
		"/etc/link-out":                         "/nix",
		"loop":                                  "too many symbolic links",
		"/etc/alternatives/../../home/u/r.conf": "/home",
	} {
		root := t.TempDir()
		for _, dir := range []string{"etc/resolvconf", "etc/alternatives", "run/systemd/resolve", "run/resolvconf", "var"} {
			assert.NilError(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
		}
		for _, file := range []string{"run/systemd/resolve/stub", "run/resolvconf/resolv.conf", "etc/other"} {
			assert.NilError(t, os.WriteFile(filepath.Join(root, file), nil, 0o644))
		}
		for name, to := range map[string]string{
			"etc/resolvconf/run": "/run/resolvconf", "var/run": "/run", "etc/link-out": "/nix/store/x", "etc/loop": "loop",
		} {
			assert.NilError(t, os.Symlink(to, filepath.Join(root, name)))
		}
		if target == "" {
			assert.NilError(t, os.WriteFile(filepath.Join(root, "etc/resolv.conf"), nil, 0o644))
		} else {
			assert.NilError(t, os.Symlink(target, filepath.Join(root, "etc/resolv.conf")))
		}
		err := insideSandboxOf(root, "/etc/resolv.conf")
		if fault == "" {
			assert.Check(t, err, target)
		} else {
			assert.Check(t, is.ErrorContains(err, fault), target)
		}
	}
}

// TestSlirpConfinement starts slirp4netns with the default config, and with a program that refuses the sandbox.
func TestSlirpConfinement(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, script string
		want         confinement
		warning      string
	}{
		{name: "default", want: confinement{true, true}},
		{
			name: "no sandbox", script: "case \"$*\" in *--enable-sandbox*) echo cannot pivot_root to /tmp >&2; exit 1;; esac\nexec slirp4netns \"$@\"\n",
			want: confinement{false, true}, warning: "slirp4netns runs without its sandbox: ",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			testutil.Require(t, testutil.UserNS, testutil.Program("ip"), testutil.Program("nsenter"), testutil.Program(config.DriverSlirp))
			program := config.DriverSlirp
			if tc.script != "" {
				program = filepath.Join(t.TempDir(), "slirp4netns")
				testutil.Script(t, program, tc.script)
			}
			child := exec.Command("sleep", "infinity")
			child.SysProcAttr = &syscall.SysProcAttr{
				Pdeathsig: syscall.SIGKILL, Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
				UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
				GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
			}
			assert.NilError(t, child.Start())
			t.Cleanup(func() { _ = child.Process.Kill(); _ = child.Wait() })

			c := config.Default()
			r := &run{Options: Options{Config: c, Log: logrus.New(), LogWriter: io.Discard}}
			_, ipnet, err := net.ParseCIDR(c.Network.CIDR)
			assert.NilError(t, err)
			d, err := r.slirpDriver(program, ipnet)
			assert.NilError(t, err)
			_, cleanup, err := d.ConfigureNetwork(child.Process.Pid, t.TempDir(), "")
			assert.NilError(t, err)
			t.Cleanup(func() { assert.Check(t, cleanup()) })

			var found []confinement
			for _, pid := range childrenNamed([]string{config.DriverSlirp}) {
				// The program of the other subtest may end at any time.
				b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				if slices.Contains(strings.Split(string(b), "\x00"), fmt.Sprint(child.Process.Pid)) {
					found = append(found, confined(t, pid))
				}
			}
			assert.Assert(t, is.Len(found, 1))
			assert.Check(t, is.Equal(found[0], tc.want))
			assert.Check(t, is.Contains(strings.Join(d.Warnings(), "\n"), tc.warning))
			assert.Check(t, is.Equal(len(d.Warnings()) > 0, tc.warning != ""))
		})
	}
}

// confined reads the confinement of a process from proc(5). In its sandbox, slirp4netns keeps one capability, CAP_NET_BIND_SERVICE.
func confined(t *testing.T, pid int) confinement {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	assert.NilError(t, err)
	return confinement{
		sandbox: strings.Contains(string(b), "\nCapBnd:\t0000000000000400\n"), seccomp: strings.Contains(string(b), "\nSeccomp:\t2\n"),
	}
}
