package preflight

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// TestRealHost runs all checks on the real host, whatever their results. The duration is logged, because they run before each
// start.
func TestRealHost(t *testing.T) {
	t.Parallel()
	uid := os.Getuid()
	if uid == 0 {
		uid = 65534 // an unprivileged uid, because for root only one check runs
	}
	exe, err := os.Executable()
	assert.NilError(t, err)
	dir := t.TempDir()
	c := config.Default()
	c.Complete(config.HostFacts{Hostname: "node1", XDGDataHome: dir})
	in := Input{
		Config: c, UID: uid, Exe: exe, Env: os.Environ(),
		Runtime: layout.NewRuntime("/run/user/1", "default"), Data: layout.NewData(filepath.Join(dir, "data")),
	}
	start := time.Now()
	found := Run(t.Context(), in)
	t.Logf("%d findings in %s", len(found), time.Since(start))
	seen := map[string]bool{}
	for _, f := range found {
		t.Logf("%s %s: %s\n%s", f.Level, f.Check, f.Message, f.Hint)
		seen[f.Check] = true
		assertShell(t, f.Hint)
	}
	for _, name := range Names() {
		assert.Assert(t, seen[name], name)
	}
}

func BenchmarkRun(b *testing.B) {
	c := config.Default()
	c.Complete(config.HostFacts{Hostname: "node1", XDGDataHome: b.TempDir()})
	in := Input{Config: c, UID: 65534, Env: os.Environ(), Data: layout.NewData(c.DataDir), Runtime: layout.NewRuntime("/run/user/1", "default")}
	for b.Loop() {
		Run(b.Context(), in)
	}
}

// TestHintsForRootKeepTheirOrder checks that without sudo all commands for root are one block, including pipes into root's
// files.
func TestHintsForRootKeepTheirOrder(t *testing.T) {
	t.Parallel()
	f := fixOf(errdefs.Text("# Delegate it:\nsudo mkdir -p /d", "printf x | sudo tee /d/f", "sudo reload", "# then log in."))
	assert.Equal(t, f.hint().String(), "# as root:\n# Delegate it:\nmkdir -p /d\nprintf x | tee /d/f\nreload\n# as the user:\n# then log in.")
	f.sudo = true
	assert.Equal(t, f.hint().String(), "# Delegate it:\nsudo mkdir -p /d\nprintf x | sudo tee /d/f\nsudo reload\n# then log in.")
}
