package hostsetup

import (
	"context"
	"os"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// withLXC returns a host with the Debian package lxc.
func withLXC(t *testing.T, systemd bool) *fakeHost {
	t.Helper()
	f := newHost(t, systemd)
	f.write("usr/libexec/lxc/lxc-user-nic", "")
	f.write("usr/libexec/lxc/lxc-net", "")
	assert.NilError(t, os.Chmod(f.path("usr/libexec/lxc/lxc-user-nic"), 0o755|os.ModeSetuid))
	f.o.LXCUserNIC = "lxcbr0"
	return f
}

// lxc returns the step, as the host is now.
func (f *fakeHost) lxc() (*Plan, Step) {
	f.t.Helper()
	p, err := NewPlan(f.o)
	assert.NilError(f.t, err)
	for _, s := range p.Steps {
		if s.Name == lxcStep {
			return p, s
		}
	}
	return p, Step{}
}

func (f *fakeHost) usernet() string {
	b, _ := os.ReadFile(f.path("etc/lxc/lxc-usernet"))
	return string(b)
}

func TestLXCUserNIC(t *testing.T) {
	t.Parallel()
	for _, systemd := range []bool{false, true} {
		f := withLXC(t, systemd)
		start, stop := []string{"lxc-net restart"}, "lxc-net stop"
		if systemd {
			start = []string{"systemctl enable lxc-net.service", "systemctl restart lxc-net.service"}
			stop = "systemctl disable --now lxc-net.service"
		}
		p, s := f.lxc()
		script, err := p.Script()
		assert.NilError(t, err)
		assert.Assert(t, cmp.Contains(script, "echo 'dev veth lxcbr0 10' >> /etc/lxc/lxc-usernet\n"))
		assert.Assert(t, cmp.Contains(script, strings.Join(start, "\n")+"\n"))
		assert.NilError(t, s.Do(context.Background()))
		assert.Equal(t, f.usernet(), "dev veth lxcbr0 10\n")
		assert.DeepEqual(t, f.commands, start)
		assert.NilError(t, p.record.save())

		f.o.LXCUserNIC = "" // the recorded bridge is used
		p, s = f.lxc()
		needed, err := s.Needed()
		assert.NilError(t, err)
		assert.Assert(t, !needed, "done already")
		f.remove("sys/class/net/lxcbr0") // as a reboot does
		needed, err = s.Needed()
		assert.NilError(t, err)
		assert.Assert(t, needed)
		assert.NilError(t, s.Do(context.Background()))
		assert.Equal(t, f.usernet(), "dev veth lxcbr0 10\n", "the row must not be added twice")

		assert.NilError(t, p.Undo(context.Background(), func(Result) {}))
		assert.Equal(t, f.usernet(), "")
		assert.Equal(t, f.commands[len(f.commands)-1], stop)
		_, s = f.lxc()
		assert.Equal(t, s.Name, "", "the step must be gone after the undo")
	}
}

// TestLXCUserNICUndoesItsOwn checks that undo keeps rows of others, and the bridge that they may use.
func TestLXCUserNICUndoesItsOwn(t *testing.T) {
	t.Parallel()
	f := withLXC(t, false)
	f.write("etc/lxc/lxc-usernet", "other veth lxcbr0 2")
	p, s := f.lxc()
	assert.NilError(t, s.Do(context.Background()))
	assert.Equal(t, f.usernet(), "other veth lxcbr0 2\ndev veth lxcbr0 10\n")
	assert.NilError(t, p.Undo(context.Background(), func(Result) {}))
	assert.Equal(t, f.usernet(), "other veth lxcbr0 2\n")
	assert.DeepEqual(t, f.commands, []string{"lxc-net restart"})
}

// TestLXCUserNICRevivesTheBridge checks that lxc-net is restarted if its DHCP server has ended, although its bridge and its state
// file exist, and that an unrelated process with the pid of the server is not killed.
func TestLXCUserNICRevivesTheBridge(t *testing.T) {
	t.Parallel()
	for _, died := range []string{"no process", "another process", "no file"} {
		f := withLXC(t, false)
		_, s := f.lxc()
		assert.NilError(t, s.Do(context.Background()))
		f.commands = nil
		const pid = "2147483646" // over the kernel's limit of 2^22
		f.write("proc/"+pid+"/comm", "dnsmasq\n")
		f.write("run/lxc/dnsmasq.pid", pid+"\n")
		needed, err := s.Needed()
		assert.NilError(t, err)
		assert.Assert(t, !needed, "the server is running")

		f.remove("proc/" + pid)
		want := []string{"rm -f /run/lxc/dnsmasq.pid", "lxc-net restart"}
		switch died {
		case "another process":
			f.write("proc/"+pid+"/comm", "sshd\n")
		case "no file":
			f.remove("run/lxc/dnsmasq.pid")
			f.write("run/lxc/network_up", "")
			want = want[1:]
		}
		_, s = f.lxc()
		needed, err = s.Needed()
		assert.NilError(t, err)
		assert.Assert(t, needed, died)
		assert.NilError(t, s.Do(context.Background()))
		assert.DeepEqual(t, f.commands, want)

		f.write("etc/default/lxc-net", "USE_LXC_BRIDGE=true\nLXC_BRIDGE=\"other0\"\n")
		needed, err = s.Needed()
		assert.NilError(t, err)
		assert.Assert(t, !needed, "the bridge is not lxc-net's")
	}
}

func TestLXCUserNICRefuses(t *testing.T) {
	t.Parallel()
	f := withLXC(t, false)
	assert.NilError(t, os.Chmod(f.path("usr/libexec/lxc/lxc-user-nic"), 0o755))
	_, s := f.lxc()
	assert.ErrorContains(t, s.Do(context.Background()), "is not set-uid root")

	f.remove("usr/libexec/lxc")
	assert.Error(t, s.Do(context.Background()), "program lxc-user-nic not found: apt-get install -y dnsmasq-base lxc")

	f = withLXC(t, false)
	f.o.LXCUserNIC = "br7"
	p, s := f.lxc()
	assert.ErrorContains(t, s.Do(context.Background()), "bridge br7 not found: lxc-net created another one")

	// A bridge that could not be created is not retried without the option, and undo removes its row.
	assert.NilError(t, p.record.save())
	f.o.LXCUserNIC = ""
	p, s = f.lxc()
	needed, err := s.Needed()
	assert.NilError(t, err)
	assert.Assert(t, !needed)
	assert.NilError(t, p.Undo(context.Background(), func(Result) {}))
	assert.Equal(t, f.usernet(), "")

	for _, name := range []string{"a b", "x;y", strings.Repeat("b", 16), "-b"} {
		f.o.LXCUserNIC = name
		_, err := NewPlan(f.o)
		assert.ErrorIs(t, err, errdefs.ErrConfig)
	}
}
