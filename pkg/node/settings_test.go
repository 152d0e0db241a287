package node

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// TestLastSettings checks that a start keeps its settings with the data, that Attach uses them, and that they can be lost without harm.
func TestLastSettings(t *testing.T) {
	testutil.Require(t, testutil.Subids)
	home(t)
	file := filepath.Join(t.TempDir(), "node.yaml")
	assert.NilError(t, os.WriteFile(file, []byte("apiVersion: "+config.APIVersion+"\nkind: "+config.Kind+"\nnetwork: {mtu: 9000}\n"), 0o600))
	s, err := config.ReadSettings(file)
	assert.NilError(t, err)
	s.Set("api.port", "7000")
	s.Set("dataDir", filepath.Join(t.TempDir(), "data"))
	cfg, err := s.Build("default")
	assert.NilError(t, err)
	assert.Assert(t, LastSettings("default", "") == nil)
	n := claimed(t, cfg, Options{Settings: &s})

	last := LastSettings("default", "")
	assert.Equal(t, last.File, file)
	assert.DeepEqual(t, last.Fields, []config.Setting{{Path: "api.port", Value: "7000"}}, cmpopts.IgnoreUnexported(config.Setting{}))
	assert.Equal(t, attach(t).Config().API.Port, 7000)
	assert.Equal(t, attach(t).Config().Network.MTU, 9000)
	assert.Equal(t, attach(t).Data().Dir, n.Data().Dir)

	assert.NilError(t, os.Remove(file))
	assert.Equal(t, attach(t).Config().API.Port, 6443, "a stopped node can be inspected without its configuration file")
	assert.Equal(t, LastSettings("default", "").Document, last.Document)

	// An earlier version wrote a record without settings.
	b, err := os.ReadFile(n.Data().Record())
	assert.NilError(t, err)
	fields := map[string]any{}
	assert.NilError(t, json.Unmarshal(b, &fields))
	delete(fields, "settings")
	b, err = json.Marshal(fields)
	assert.NilError(t, err)
	assert.NilError(t, os.WriteFile(n.Data().Record(), b, 0o600))
	assert.Assert(t, LastSettings("default", "") == nil)
	assert.Equal(t, attach(t).Config().API.Port, 6443)

	// A program that gives the whole configuration keeps none.
	claimed(t, cfg, Options{Settings: &s})
	claimed(t, cfg, Options{})
	assert.Assert(t, LastSettings("default", "") == nil)
}
