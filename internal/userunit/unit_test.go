package userunit

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

func TestWord(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/usr/bin/rn": `"/usr/bin/rn"`, `/a b/50%/"q"\x$y`: `"/a b/50%%/\"q\"\\x$y"`,
	} {
		got, err := Word(path)
		assert.NilError(t, err)
		assert.Equal(t, got, want)
	}
	for _, bad := range []string{"rn", "", "/a\nb"} {
		_, err := Word(bad)
		assert.ErrorContains(t, err, "cannot be used in a unit file")
	}
}

// manager is a fake user manager that creates the links of enabled units.
type manager struct {
	dir   string
	calls []string
	fail  string
}

func (m *manager) run(_ context.Context, args ...string) (string, error) {
	line := strings.Join(args, " ")
	m.calls = append(m.calls, line)
	if m.fail != "" && strings.HasPrefix(line, m.fail) {
		return "", errors.New("no")
	}
	link := filepath.Join(m.dir, "systemd", "user", "default.target.wants", args[len(args)-1])
	switch args[0] {
	case "enable":
		_ = os.MkdirAll(filepath.Dir(link), 0o755)
		return "", os.WriteFile(link, nil, 0o600)
	case "disable":
		return "", os.RemoveAll(link)
	}
	return "", nil
}

func TestInstall(t *testing.T) {
	t.Parallel()
	m := &manager{dir: t.TempDir()}
	i, err := New(Options{Exe: "/opt/100% mine/rootlessnode", ConfigHome: m.dir, Run: m.run})
	assert.NilError(t, err)
	ctx := t.Context()
	assert.ErrorIs(t, i.Install(ctx, Wanted{Name: "one", Config: nil, Stop: time.Minute, Start: true}), os.ErrNotExist)
	assert.Equal(t, len(m.calls), 0, "a node without a configuration must not be enabled")

	assert.NilError(t, i.Install(ctx, Wanted{Name: "one", Config: []byte("a: b\n"), Stop: time.Minute, Start: true}))
	assert.DeepEqual(t, m.calls, []string{"daemon-reload", "enable rootlessnode@one.service", "restart rootlessnode@one.service"})
	unit, err := os.ReadFile(i.UnitFile())
	assert.NilError(t, err)
	for _, want := range []string{
		`ExecStart="/opt/100%% mine/rootlessnode" --name %i up --foreground --config "%E/rootlessnode/%i.yaml"`,
		`ExecStopPost=-"/opt/100%% mine/rootlessnode" --name %i down --ended`,
		"Type=notify", "Delegate=yes", "KillMode=mixed", "TimeoutStopSec=75", "WatchdogSec=120",
	} {
		assert.Assert(t, cmp.Contains(string(unit), want+"\n"))
	}
	st, err := os.Stat(i.ConfigFile("one"))
	assert.NilError(t, err)
	assert.Equal(t, st.Mode().Perm(), os.FileMode(0o600))

	assert.NilError(t, i.Install(ctx, Wanted{Name: "one", Config: nil, Stop: time.Minute, Start: false}), "the existing configuration must be used")
	assert.NilError(t, i.Install(ctx, Wanted{Name: "two", Config: []byte("c: d\n"), Stop: time.Minute, Start: false}))
	assert.NilError(t, i.Uninstall(ctx, "one"))
	_, err = os.Stat(i.UnitFile())
	assert.NilError(t, err, "another node uses the unit file")
	assert.NilError(t, i.Uninstall(ctx, "two"))
	_, err = os.Stat(i.UnitFile())
	assert.ErrorIs(t, err, os.ErrNotExist)
	_, err = os.Stat(i.ConfigFile("two"))
	assert.NilError(t, err, "configurations stay")
	assert.NilError(t, i.Uninstall(ctx, "two"), "uninstalling a node that is not installed must succeed")
}

func TestInstallOnDemand(t *testing.T) {
	t.Parallel()
	m := &manager{dir: t.TempDir()}
	i, err := New(Options{Exe: "/rn", ConfigHome: m.dir, Run: m.run})
	assert.NilError(t, err)
	ctx := t.Context()
	w := Wanted{Name: "one", Config: []byte("a: b\n"), Stop: time.Minute, Start: true, OnDemand: "127.0.0.1:6443"}
	const service, socket = "rootlessnode@one.service", "rootlessnode@one.socket"
	assert.NilError(t, i.Install(ctx, w))
	assert.DeepEqual(t, m.calls, []string{
		"daemon-reload", "disable " + service, "enable " + socket, "stop " + service, "restart " + socket, "restart " + service,
	})
	text, err := os.ReadFile(i.SocketFile("one"))
	assert.NilError(t, err)
	assert.Assert(t, cmp.Contains(string(text), "\nListenStream=127.0.0.1:6443\n"))

	m.calls, w.OnDemand = nil, ""
	assert.NilError(t, i.Install(ctx, w), "and back")
	assert.DeepEqual(t, m.calls, []string{"disable --now " + socket, "daemon-reload", "enable " + service, "restart " + service})
	_, err = os.Stat(i.SocketFile("one"))
	assert.ErrorIs(t, err, os.ErrNotExist)

	m.calls, w.OnDemand, w.Start = nil, "[::1]:6443", false
	assert.NilError(t, i.Install(ctx, w))
	assert.DeepEqual(t, m.calls, []string{"daemon-reload", "disable " + service, "enable " + socket, "start " + socket})
	m.calls = nil
	assert.NilError(t, i.Uninstall(ctx, "one"))
	assert.DeepEqual(t, m.calls, []string{"disable --now " + socket, "disable --now " + service, "daemon-reload"})
	left, err := os.ReadDir(filepath.Dir(i.UnitFile()))
	assert.NilError(t, err)
	assert.Equal(t, len(left), 1, "only the directory of enabled units must remain: %v", left)
}

func TestInstallReportsErrors(t *testing.T) {
	t.Parallel()
	m := &manager{dir: t.TempDir(), fail: "restart"}
	i, err := New(Options{Exe: "/rn", ConfigHome: m.dir, Run: m.run})
	assert.NilError(t, err)
	err = i.Install(t.Context(), Wanted{Name: "one", Config: []byte("x"), Stop: time.Minute, Start: true})
	assert.Error(t, err, "systemctl --user restart rootlessnode@one.service: no")
	assert.Assert(t, cmp.Contains(errdefs.ReportOf(err).Hints[0], "journalctl --user -u rootlessnode@one.service"))
	m.fail = "show-environment"
	assert.ErrorIs(t, i.Check(t.Context()), errdefs.ErrPreflight)
}
