package child

import (
	"strings"
	"testing"

	"go.uber.org/goleak"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/copyup"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestFileSystem checks that all paths that the node role uses have the same name inside.
func TestFileSystem(t *testing.T) {
	t.Parallel()
	cfg := config.Default()
	cfg.Complete(config.HostFacts{Hostname: "h", XDGDataHome: "/home/u/.local/share"})
	cfg.ComponentsDir = "/opt/rootlessnode"
	cfg.Containerd.RegistryConfigDir = "/home/u/registries"
	rt := layout.NewRuntime("/run/user/1000", cfg.Name)
	spec := fileSystem(cfg, rt)
	keep := strings.Join(spec.Keep, " ")
	for _, p := range []string{rt.Dir, cfg.DataDir, cfg.ComponentsDir} {
		assert.Assert(t, strings.Contains(keep, p), p)
	}
	last := spec.Binds[len(spec.Binds)-1]
	assert.DeepEqual(t, last, copyup.Bind{Source: "/home/u/registries", Target: layout.InsideRegistryConf})
	assert.Equal(t, len(spec.Binds), len(layout.NewData(cfg.DataDir).Binds())+1)
}
