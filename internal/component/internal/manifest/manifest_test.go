package manifest

import (
	"testing"

	"gotest.tools/v3/assert"
)

const stream = `# a comment
kind: A
metadata: {name: a}
---
# nothing but a comment
---
kind: B
metadata: {name: b}
list:
- x: 1
`

func decode(t *testing.T) Objects {
	t.Helper()
	o, err := Decode([]byte(stream))
	assert.NilError(t, err)
	assert.Equal(t, len(o), 2)
	return o
}

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	data, err := decode(t).Encode()
	assert.NilError(t, err)
	assert.Equal(t, string(data), "kind: A\nmetadata:\n  name: a\n---\nkind: B\nlist:\n- x: 1\nmetadata:\n  name: b\n")
	again, err := Decode(data)
	assert.NilError(t, err)
	assert.DeepEqual(t, again, decode(t))
}

func TestSet(t *testing.T) {
	t.Parallel()
	o := decode(t)
	assert.NilError(t, o.Set("B", "b", "y: z\n---\n", "list", "0", "x"))
	assert.NilError(t, o.Set("B", "b", true, "new"))
	data, err := o.Encode()
	assert.NilError(t, err)
	again, err := Decode(data)
	assert.NilError(t, err)
	assert.DeepEqual(t, again, o)

	assert.ErrorContains(t, o.Set("C", "b", 1, "x"), "C b not found")
	assert.ErrorContains(t, o.Set("B", "a", 1, "x"), "B a not found")
	for _, path := range [][]string{{"list", "1", "x"}, {"list", "-1", "x"}, {"list", "x", "x"}, {"none", "x"}, {"kind", "x", "y"}, {"list", "x"}} {
		assert.ErrorContains(t, o.Set("B", "b", 1, path...), "B b: ")
	}
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	_, err := Decode([]byte("a: 1\n---\na: 1\na: 2\n"))
	assert.ErrorContains(t, err, "document 2")
}
