package crio

import (
	"testing"

	"github.com/pelletier/go-toml/v2"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/internal/fixture"
)

// with returns a node of the fixture that runs CRI-O.
func with(e component.Env) component.Env {
	e.Config.CRI.Runtime = config.RuntimeCRIO
	e.CRIO = component.CRIOPrograms{Crio: "/usr/bin/crio", Conmon: "/usr/bin/conmon"}
	if len(e.Unenforced) > 0 { // fixture.Poor
		e.FuseOverlayfsPath = "/usr/bin/fuse-overlayfs"
		e.CRIO = component.CRIOPrograms{Crio: "/opt/components/crio", Conmon: "/home/u/bin/conmon", Pinns: "/opt/components/pinns"}
		e.Config.CRIO.NRI = true
		e.Config.CRIO.RegistriesConf = "/home/u/registries.conf"
		e.Config.CRIO.SignaturePolicy = "/home/u/policy.json"
		e.Config.CRIO.PauseImage = "example.com/pause:1"
	}
	return e
}

func TestRender(t *testing.T) {
	t.Parallel()
	fixture.Golden(t, func(e component.Env) (component.Rendered, error) { return Render(with(e)) })
}

// TestFilesAreTOML checks that the files can be parsed and that CRI-O's table is complete.
func TestFilesAreTOML(t *testing.T) {
	t.Parallel()
	for _, e := range []component.Env{fixture.Env(), fixture.Poor()} {
		r, err := Render(with(e))
		assert.NilError(t, err)
		var conf map[string]map[string]any
		assert.NilError(t, toml.Unmarshal(fixture.File(r, "crio.conf"), &conf))
		run := conf["crio"]["runtime"].(map[string]any)
		assert.Equal(t, run["cgroup_manager"], "cgroupfs")
		assert.Equal(t, run["runtimes"].(map[string]any)["runc"].(map[string]any)["runtime_path"], e.OCIRuntime)
		var storage map[string]map[string]any
		assert.NilError(t, toml.Unmarshal(fixture.File(r, "storage.conf"), &storage))
		assert.Equal(t, storage["storage"]["driver"], conf["crio"]["storage_driver"])
	}
}

func TestVFSFallback(t *testing.T) {
	t.Parallel()
	e := with(fixture.Env())
	e.Snapshotter = storageNative
	s, err := storageFor(e)
	assert.NilError(t, err)
	assert.Equal(t, s, storage{driver: "vfs"})
}

func TestRenderRefuses(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		want   string
		change func(*component.Env)
	}{
		{`unknown storage "auto"`, func(e *component.Env) { e.Snapshotter = "auto" }},
		{"path of the program fuse-overlayfs is not set", func(e *component.Env) { e.Snapshotter = storageFuseOverlayfs }},
		{"the paths of CRI-O's programs are not set", func(e *component.Env) { e.CRIO.Conmon = "" }},
	} {
		e := with(fixture.Env())
		tc.change(&e)
		_, err := Render(e)
		assert.ErrorContains(t, err, tc.want)
	}
}
