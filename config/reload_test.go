package config

import (
	"testing"

	"gotest.tools/v3/assert"
)

func TestReloadable(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]bool{"kubelet.maxPods": true, "ports.static": true, "network.mtu": false, "kubelet": false, "nope": false} {
		assert.Equal(t, Reloadable(path), want, path)
	}
	for _, l := range (&NodeConfig{}).leaves() {
		if v, ok := l.tag.Lookup("reload"); ok {
			assert.Equal(t, v, "yes", l.path)
		}
	}
}

func TestWith(t *testing.T) {
	t.Parallel()
	a, b := Default(), Default()
	b.API.Port, b.Kubelet.MaxPods = 7000, 50
	c := a.With(b, []string{"kubelet.maxPods"})
	assert.Equal(t, c.Kubelet.MaxPods, 50)
	assert.Equal(t, c.API.Port, a.API.Port)
	assert.Equal(t, a.Kubelet.MaxPods, 110, "a is not changed")
}
