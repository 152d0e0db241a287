package specfilter

import (
	"testing"

	"gotest.tools/v3/assert"
)

func TestCgroup(t *testing.T) {
	t.Parallel()
	move := Move{From: "/k8s.io", To: "/kubepods"}
	for _, c := range []struct {
		in, out string
		moved   bool
	}{
		{`{"linux":{"cgroupsPath":"/k8s.io/abc","x":1}}`, `{"linux":{"cgroupsPath":"/kubepods/abc","x":1}}`, true},
		{` {"linux":{"cgroupsPath":"/kubepods/burstable/p/abc"}}`, "", false},
		{`{"linux":{"cgroupsPath":"/k8s.iox/abc"}}`, "", false},
		{`{"linux":{"cgroupsPath":7},"cgroupsPath":"/k8s.io/abc"}`, "", false},
		{`{"linux":null}`, "", false},
		{`{}`, "", false},
	} {
		out, moved, err := Cgroup([]byte(c.in), move)
		assert.NilError(t, err)
		assert.Equal(t, moved, c.moved, c.in)
		if !moved {
			c.out = c.in
		}
		assert.Equal(t, string(out), c.out)
		again, moved, err := Cgroup(out, move)
		assert.NilError(t, err)
		assert.Assert(t, !moved && string(again) == string(out), "not idempotent: %s", again)
	}
	_, _, err := Cgroup([]byte(`[`), move)
	assert.ErrorContains(t, err, "parse OCI specification")
	out, moved, err := Cgroup([]byte(`{"linux":{"cgroupsPath":"/k8s.io/abc"}}`), Move{})
	assert.NilError(t, err)
	assert.Assert(t, !moved && len(out) > 0)
}

func TestCreateMovesCgroup(t *testing.T) {
	t.Parallel()
	s := newShim(t, "cpu")
	s.write(t, "shim.json", string(Config{Runc: s.dir + "/runc", Drop: []string{"cpu"}, Cgroup: Move{From: "/k8s.io", To: "/kubepods"}}.Render()), 0o600)
	s.write(t, "config.json", `{"linux":{"cgroupsPath":"/k8s.io/id","resources":{}}}`, 0o640)
	code, stderr := s.run(nil, "create", "--bundle", s.dir, "id")
	assert.Equal(t, code, 7, stderr)
	assert.Equal(t, s.read(t, "config.json"), `{"linux":{"cgroupsPath":"/kubepods/id","resources":{}}}`)
}
