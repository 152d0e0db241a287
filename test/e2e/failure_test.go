package e2e

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/preflight"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// noBareError checks that the output of a failed command has a cause and not only its consequence, and no fields of Go structs.
func noBareError(t *testing.T, r result) {
	t.Helper()
	for _, bad := range []string{"exit status", "&{", "no process serves", "map[", "%!"} {
		assert.Check(t, !strings.Contains(r.output, bad), "%s: the output contains %q:\n%s", r.args, bad, r.output)
	}
}

// TestComponentFails checks that up reports each failure of a component with its name, its log and exit code 4, and leaves nothing.
func TestComponentFails(t *testing.T) {
	t.Parallel()
	n := newNode(t, "e2e-fails", "--set", "restart.giveUpAfter=2")
	for _, c := range []struct {
		name, component, script string
		args                    []string
		says                    []string
	}{
		{name: "exits at once", component: "kube-scheduler", script: "#!/bin/sh\necho no such option; exit 3\n",
			says: []string{"exited with status 3", "no such option", "logs kube-scheduler"}},
		{name: "cannot be executed", component: "etcd", script: "not a program\n", says: []string{"exec format error"}},
		{name: "crashes later", component: "containerd", script: "#!/bin/sh\necho panic >&2; kill -SEGV $$\n", says: []string{"killed by SIGSEGV", "panic"}},
		{name: "is never ready", component: "kube-apiserver", script: "#!/bin/sh\necho waiting; exec sleep 1000\n",
			args: []string{"--set", "timeouts.componentStart=1s"}, says: []string{"not ready within 1s", "waiting"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := n.in(t)
			args := append([]string{"up", "--components-dir", fakeComponent(t, c.component, c.script)}, append(n.args, c.args...)...)
			n.fails(args, append(c.says, c.component)...)
		})
	}
	t.Run("roles are killed during the start", func(t *testing.T) {
		for range rounds(1) {
			n.in(t).rolesKilledDuringUp()
		}
	})
}

// fails runs an up that must fail because of a component, and checks what up and status say.
func (n *testNode) fails(args []string, says ...string) {
	n.t.Helper()
	r := <-n.background(args...)
	assert.Equal(n.t, r.code, errdefs.ExitComponent, r.output)
	for _, text := range append(says, "error: ", "log: ") {
		assert.Check(n.t, cmp.Contains(r.output, text))
	}
	noBareError(n.t, r)
	noTrace(n.t, n.name)
	s := n.status()
	assert.Equal(n.t, s.State, status.NodeFailed)
	assert.Equal(n.t, s.Failure.Code, errdefs.ExitComponent)
	assert.Assert(n.t, s.Failure.LogPath != "" && s.Failure.Component != "", "%+v", s.Failure)
}

// rolesKilledDuringUp kills a process of rootlessnode at a random moment of a start.
func (n *testNode) rolesKilledDuringUp() {
	n.t.Helper()
	start := n.startUp()
	<-time.After(rand.N(2 * time.Second)) // chooses the phase of the start
	s := n.status()
	pids := []int{s.ParentPID, s.ChildPID}
	victim := pids[rand.IntN(len(pids))]
	if victim == 0 { // too early
		n.run(downLimit, "down")
	} else if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
		assert.ErrorIs(n.t, err, syscall.ESRCH)
	}
	r := <-start
	if r.code == 0 { // the down was too early too
		n.down()
		return
	}
	assert.Equal(n.t, r.code, errdefs.ExitComponent, r.output)
	noBareError(n.t, r)
	noTrace(n.t, n.name)
}

func components() string { return filepath.Join(os.Getenv(envOut), "libexec", "rootlessnode") }

// fakeComponent returns a components directory in which a script replaces a component.
func fakeComponent(t *testing.T, component, script string) string {
	t.Helper()
	top := t.TempDir()
	dir := filepath.Join(top, "libexec", "rootlessnode")
	assert.NilError(t, os.MkdirAll(dir, 0o755))
	assert.NilError(t, os.Symlink(filepath.Join(os.Getenv(envOut), "share"), filepath.Join(top, "share")))
	entries, err := os.ReadDir(components())
	assert.NilError(t, err)
	for _, e := range entries {
		if e.Name() != preflight.ManifestFile && e.Name() != component {
			assert.NilError(t, os.Symlink(filepath.Join(components(), e.Name()), filepath.Join(dir, e.Name())))
		}
	}
	m, err := preflight.ReadManifest(components())
	assert.NilError(t, err)
	assert.NilError(t, os.WriteFile(filepath.Join(dir, component), []byte(script), 0o755))
	found := false
	for i := range m.Components {
		if e := &m.Components[i]; e.Name == component {
			hash := sha256.Sum256([]byte(script))
			e.Path, e.SHA256, e.Size, found = component, hex.EncodeToString(hash[:]), int64(len(script)), true
		}
	}
	assert.Assert(t, found, "no component %s", component)
	b, err := json.Marshal(m)
	assert.NilError(t, err)
	assert.NilError(t, os.WriteFile(filepath.Join(dir, preflight.ManifestFile), b, 0o644))
	return dir
}
