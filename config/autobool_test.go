package config

import (
	"testing"

	"gotest.tools/v3/assert"
)

func TestAutoBool(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]AutoBool{"auto": Auto, "true": On, "false": Off, `"true"`: On, `"auto"`: Auto} {
		c, err := LoadBytes([]byte("apiVersion: rootlessnode.dev/v1alpha1\nkind: NodeConfig\nnetwork:\n  slirpSandbox: "+text+"\n"), "test")
		assert.NilError(t, err, text)
		assert.Equal(t, c.Network.SlirpSandbox, want, text)
		written, err := Marshal(c)
		assert.NilError(t, err)
		again, err := LoadBytes(written, "test")
		assert.NilError(t, err, string(written))
		assert.DeepEqual(t, again, c)
	}
	c := Default()
	assert.NilError(t, c.Set("network.slirpSeccomp", "true"))
	assert.Equal(t, c.Network.SlirpSeccomp, On)
	assert.NilError(t, c.Set("network.slirpSeccomp", "auto"))
	assert.Equal(t, c.Network.SlirpSeccomp, Auto)
	for _, text := range []string{"yes", "1", "[true]"} {
		assert.ErrorContains(t, c.Set("network.slirpSeccomp", text), "must be auto, true or false", text)
	}
	assert.DeepEqual(t, Auto.Choices(), []bool{true, false})
	assert.DeepEqual(t, AutoBool("").Choices(), []bool{true, false})
	assert.DeepEqual(t, On.Choices(), []bool{true})
	assert.DeepEqual(t, Off.Choices(), []bool{false})
}
