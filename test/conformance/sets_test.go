package main

import (
	"errors"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"
)

func TestPasses(t *testing.T) {
	t.Parallel()
	for _, set := range setNames() {
		passes, err := options{set: set, procs: 3}.passes()
		assert.NilError(t, err, set)
		assert.Equal(t, passes[0].Procs, 3)
		for _, p := range passes {
			assert.Check(t, cmp.Contains(p.Labels, notInUserNS), set)
			assert.DeepEqual(t, p.Skip, []string{twoNodes, foreignImages})
			assert.Equal(t, strings.Contains(p.Labels, "!"+notInUserNS), set != setNotInUserNS, set)
		}
		if set == setSmoke {
			assert.Equal(t, len(passes), 1)
			assert.Equal(t, len(passes[0].Focus), len(smokeSpecs()))
			continue
		}
		assert.Equal(t, len(passes), 2)
		assert.Equal(t, passes[1].Procs, 1, "serial specs run one at a time")
	}
}

func TestPassesRefuse(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]options{
		"unknown set":     {set: "some", procs: 1},
		"no process":      {set: setAll},
		"bad focus":       {set: setAll, procs: 1, focus: []string{"("}},
		"focus and smoke": {set: setSmoke, procs: 1, focus: []string{"x"}},
	} {
		_, err := o.passes()
		assert.Check(t, errors.Is(err, errUsage), name)
	}
}

func TestSmokeSpecsAreNamedOnce(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, name := range smokeSpecs() {
		assert.Check(t, !seen[name], name)
		seen[name] = true
	}
	assert.Check(t, len(seen) > 0)
}
