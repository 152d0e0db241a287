package runtime

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/containerd"
	"github.com/rootlessnode/rootlessnode/internal/component/crio"
)

func configOf(runtime string) *config.NodeConfig {
	cfg := config.Default()
	cfg.CRI.Runtime = runtime
	if runtime == config.RuntimeExternal {
		cfg.CRI.Endpoint = "unix:///run/mine.sock"
	}
	return cfg
}

func TestRuntimes(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ runtime, unit, cgroup, socket, importer string }{
		{config.RuntimeContainerd, "containerd", "/k8s.io", "/run/containerd/containerd.sock", ""},
		{config.RuntimeCRIO, "crio", crio.DefaultCgroup, "/run/crio/crio.sock", "skopeo"},
		{config.RuntimeExternal, "external-runtime", "/k8s.io", "/run/mine.sock", ""},
	} {
		t.Run(tc.runtime, func(t *testing.T) {
			t.Parallel()
			cfg := configOf(tc.runtime)
			cfg.Containerd.PauseImage, cfg.CRIO.PauseImage = "example.com/a:1", "example.com/b:1"
			r := Of(cfg)
			assert.Equal(t, r.Unit(), tc.unit)
			assert.Equal(t, r.Cgroup(), tc.cgroup)
			assert.Equal(t, Socket(cfg), tc.socket)
			assert.Equal(t, r.Endpoint(), "unix://"+tc.socket)
			assert.Equal(t, strings.Join(append(r.ImportCommand("n", "a"), "")[:1], ""), tc.importer)
			assert.Equal(t, r.RunsBundled(), tc.runtime != config.RuntimeExternal)
			assert.Equal(t, r.PauseImage() == "example.com/b:1", tc.runtime == config.RuntimeCRIO)
			env := ClientEnv(r, component.Storage{Snapshotter: "native"})
			assert.Assert(t, slices.Contains(env, "CONTAINER_RUNTIME_ENDPOINT=unix://"+tc.socket))
			ctr := slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "CONTAINERD_ADDRESS=") })
			assert.Equal(t, ctr, tc.runtime == config.RuntimeContainerd)
			assert.Equal(t, slices.Contains(env, "CONTAINERD_SNAPSHOTTER=native"), ctr)
			assert.Equal(t, r.HasImageStore(), tc.runtime == config.RuntimeContainerd)
		})
	}
}

// TestFindPrefersTheComponents checks that programs in the components dir take precedence over those on PATH.
func TestFindPrefersTheComponents(t *testing.T) {
	dir, host := t.TempDir(), t.TempDir()
	t.Setenv("PATH", host)
	_, err := FindProgram(dir, "crio")
	assert.ErrorContains(t, err, "find program crio of the container runtime")
	for _, d := range []string{host, dir} {
		want := filepath.Join(d, "crio")
		assert.NilError(t, os.WriteFile(want, nil, 0o755))
		got, err := FindProgram(dir, "crio")
		assert.NilError(t, err)
		assert.Equal(t, got, want)
	}
}

// TestDetectReportsAllMissing checks that one error names all missing programs.
func TestDetectReportsAllMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	cfg := configOf(config.RuntimeCRIO)
	cfg.ComponentsDir, cfg.CRIO.StorageDriver = t.TempDir(), "vfs"
	_, _, err := Of(cfg).Detect()
	assert.ErrorContains(t, err, "find program crio")
	assert.ErrorContains(t, err, "find program conmon")
	cfg.CRIO.Conmon = "/opt/conmon"
	storage, _, err := Of(cfg).Detect()
	assert.Assert(t, !strings.Contains(err.Error(), "conmon"))
	assert.Equal(t, storage.CRIO.Conmon, "/opt/conmon")
	assert.Equal(t, storage.Snapshotter, containerd.SnapshotterNative)
	_, _, err = Of(configOf(config.RuntimeExternal)).Detect()
	assert.NilError(t, err)
}
