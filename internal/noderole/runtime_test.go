package noderole

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component/containerd"
	"github.com/rootlessnode/rootlessnode/internal/component/crio"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
)

// runtimeNode returns a node role without running units.
func runtimeNode(runtime string) *nodeRole {
	cfg := config.Default()
	cfg.CRI.Runtime = runtime
	if runtime == config.RuntimeExternal {
		cfg.CRI.Endpoint = "unix:///run/mine.sock"
	}
	return &nodeRole{cfg: cfg}
}

// TestRuntimeUnits checks that the kubelet needs exactly one unit of each runtime, and that pods stop before it.
func TestRuntimeUnits(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		runtime, snapshotter, unit, cgroup string
		programs                           int
		tasks                              []string
	}{
		{config.RuntimeContainerd, containerd.SnapshotterOverlay, "containerd", "/k8s.io", 1, []string{"images"}},
		{config.RuntimeContainerd, containerd.SnapshotterFuseOverlayfs, "containerd", "/k8s.io", 2, []string{"images"}},
		{config.RuntimeCRIO, containerd.SnapshotterFuseOverlayfs, "crio", crio.DefaultCgroup, 1, []string{"images"}},
		{config.RuntimeExternal, "", "external-runtime", "/k8s.io", 0, []string{"external-runtime"}},
	} {
		t.Run(tc.runtime+tc.snapshotter, func(t *testing.T) {
			t.Parallel()
			n := runtimeNode(tc.runtime)
			n.env.Snapshotter = tc.snapshotter
			assert.Equal(t, n.runtimeUnit(), tc.unit)
			assert.Equal(t, n.runtimeCgroup(), tc.cgroup)
			assert.Equal(t, len(n.runtimePrograms()), tc.programs)
			var names []string
			for _, u := range n.runtimeTasks(func(name string, _ func(context.Context) error, needed ...string) supervisor.Unit {
				assert.DeepEqual(t, needed, []string{tc.unit})
				return supervisor.Unit{Name: name}
			}) {
				names = append(names, u.Name)
			}
			assert.DeepEqual(t, names, tc.tasks)
			if tc.programs > 0 {
				var u supervisor.Unit
				n.runtimePrograms()[tc.programs-1].adapt(&u)
				assert.Assert(t, u.KeepChildren)
			}
			pods := n.podsUnit()
			assert.DeepEqual(t, pods.Needs, needs(tc.unit))
			assert.Assert(t, pods.BeforeStop != nil)
		})
	}
}

func TestRuntimeEnv(t *testing.T) {
	t.Parallel()
	for runtime, want := range map[string]string{
		config.RuntimeContainerd: "unix:///run/containerd/containerd.sock",
		config.RuntimeCRIO:       "unix:///run/crio/crio.sock",
		config.RuntimeExternal:   "unix:///run/mine.sock",
	} {
		env := runtimeNode(runtime).runtimeEnv()
		assert.Assert(t, slices.Contains(env, "CONTAINER_RUNTIME_ENDPOINT="+want), runtime)
		ctr := slices.ContainsFunc(env, func(kv string) bool { return strings.HasPrefix(kv, "CONTAINERD_ADDRESS=") })
		assert.Equal(t, ctr, runtime == config.RuntimeContainerd)
	}
}

func TestCRIImages(t *testing.T) {
	t.Parallel()
	names, err := criImages([]byte(`{"images": [{"id": "1", "repoTags": ["a/b:1", "a/b:2"]}, {"id": "2", "repoTags": []}, {"repoTags": ["c:1"]}]}`))
	assert.NilError(t, err)
	assert.DeepEqual(t, names, []string{"a/b:1", "a/b:2", "c:1"})
	_, err = criImages([]byte("no"))
	assert.ErrorContains(t, err, "parse the output of crictl")
}

// TestFindPrefersTheComponents checks that programs in the components dir take precedence over those on PATH.
func TestFindPrefersTheComponents(t *testing.T) {
	dir, host := t.TempDir(), t.TempDir()
	t.Setenv("PATH", host)
	n := runtimeNode(config.RuntimeCRIO)
	n.cfg.ComponentsDir = dir
	_, err := n.find("crio")
	assert.ErrorContains(t, err, "find CRI-O program crio")
	for _, d := range []string{host, dir} {
		want := filepath.Join(d, "crio")
		assert.NilError(t, os.WriteFile(want, nil, 0o755))
		got, err := n.find("crio")
		assert.NilError(t, err)
		assert.Equal(t, got, want)
	}
}

// TestDetectRuntimeReportsAllMissing checks that one error names all missing programs.
func TestDetectRuntimeReportsAllMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	n := runtimeNode(config.RuntimeCRIO)
	n.cfg.ComponentsDir, n.cfg.CRIO.StorageDriver = t.TempDir(), "vfs"
	err := n.detectRuntime()
	assert.ErrorContains(t, err, "find CRI-O program crio")
	assert.ErrorContains(t, err, "find CRI-O program conmon")
	n.cfg.CRIO.Conmon = "/opt/conmon"
	assert.Assert(t, !strings.Contains(n.detectRuntime().Error(), "conmon of"))
	assert.NilError(t, runtimeNode(config.RuntimeExternal).detectRuntime())
}
