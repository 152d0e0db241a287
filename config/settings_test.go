package config

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

const header = "apiVersion: " + APIVersion + "\nkind: " + Kind + "\n"

func settingsFile(t *testing.T, content string) (path string, s Settings) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "node.yaml")
	assert.NilError(t, os.WriteFile(path, []byte(content), 0o600))
	s, err := ReadSettings(path)
	assert.NilError(t, err)
	return path, s
}

func TestSettingsInLayers(t *testing.T) {
	t.Parallel()
	path, earlier := settingsFile(t, header+"network: {mtu: 9000}\napi:\n  port: 7000\n")
	earlier.Set("api.port", "7001")
	earlier.Set("kubelet.evictionHard.memory.available", "1Gi")

	var now Settings
	now.Set("kubelet.evictionHard", "{memory.available: 2Gi}")
	merged := now.Over(earlier)
	assert.Equal(t, len(merged.Fields), 2, "the map replaces its entry")
	cfg, err := merged.Build("two")
	assert.NilError(t, err)
	assert.Equal(t, cfg.Name, "two")
	assert.Equal(t, cfg.Network.MTU, 9000)
	assert.Equal(t, cfg.API.Port, 7001)
	assert.DeepEqual(t, cfg.Kubelet.EvictionHard, map[string]string{"memory.available": "2Gi"})

	o := merged.Origins()
	assert.Equal(t, o["network.mtu"], Origin{Kind: OriginFile, File: path, Remembered: true})
	assert.Equal(t, o["api.port"], Origin{Kind: OriginFlag, Remembered: true})
	assert.Equal(t, o["kubelet.evictionHard"], Origin{Kind: OriginFlag})
	assert.Equal(t, o["logLevel"], Origin{Kind: OriginDefault})
	file, fields := merged.Remembered()
	assert.Equal(t, file, path)
	assert.DeepEqual(t, fields, []Setting{{Path: "api.port", Value: "7001", remembered: true}}, cmp.AllowUnexported(Setting{}))

	_, other := settingsFile(t, header)
	cfg, err = other.Over(earlier).Build("two")
	assert.NilError(t, err)
	assert.Equal(t, cfg.API.Port, 6443, "a file is the whole configuration")
}

// TestSettingsOfAPipe checks that a configuration that cannot be read a second time is kept as text.
func TestSettingsOfAPipe(t *testing.T) {
	t.Parallel()
	r, w, err := os.Pipe()
	assert.NilError(t, err)
	defer r.Close()
	_, err = w.WriteString(header + "api: {port: 7000}")
	assert.NilError(t, err)
	assert.NilError(t, w.Close())
	s, err := ReadSettings("/dev/fd/" + strconv.Itoa(int(r.Fd())))
	assert.NilError(t, err)
	assert.Equal(t, s.File, "")
	assert.NilError(t, s.Reread())
	cfg, err := s.Build(DefaultName)
	assert.NilError(t, err)
	assert.Equal(t, cfg.API.Port, 7000)
	file, _ := Settings{}.Over(s).Remembered()
	assert.Equal(t, file, "-")
}

func TestSettingsErrors(t *testing.T) {
	t.Parallel()
	path, s := settingsFile(t, "")
	_, err := s.Build(DefaultName)
	assert.ErrorContains(t, err, path+": apiVersion: missing")
	assert.ErrorIs(t, err, errdefs.ErrConfig)
	assert.NilError(t, os.Remove(path))
	assert.ErrorContains(t, s.Reread(), "no such file")
	s = Settings{}
	s.Set("nope", "1")
	s.Set("network.mtu", "x")
	_, err = s.Build("-")
	for _, want := range []string{"unknown field nope", "network.mtu: must be a whole number"} {
		assert.Check(t, is.ErrorContains(err, want))
	}
	assert.Equal(t, s.Unset("api"), false)
	assert.Equal(t, s.Unset("network"), true)
}

func TestDifferences(t *testing.T) {
	t.Parallel()
	a, b := Default(), Default()
	assert.Check(t, is.Len(Differences(a, b), 0))
	b.API.Port, b.API.ExtraSANs, b.DataDir, b.Timeouts.Stop = 7000, []string{"a"}, "/x", Duration(5e9)
	assert.DeepEqual(t, Differences(a, b), []Difference{
		{"dataDir", "", `"/x"`}, {"api.port", "6443", "7000"}, {"api.extraSANs", "", `["a"]`}, {"timeouts.stop", `"1m30s"`, `"5s"`},
	})
	b = Default()
	b.API.ExtraSANs = []string{}
	assert.Check(t, is.Len(Differences(a, b), 0), "an empty list equals none")
}
