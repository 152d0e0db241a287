package suite

import (
	"bytes"
	"testing"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"
)

// output is shortened output of ginkgo.
const output = `Running Suite: Kubernetes e2e suite
Will run 5 of 3206 specs
Running in parallel across 2 processes
SSS•SS•S
------------------------------
• [FAILED] [12.3 seconds]
[sig-node] Pods [It] should fail
------------------------------
• [FLAKEY TEST - TOOK 2 ATTEMPTS TO PASS] [1.0 seconds]
S•
Summarizing 1 Failure:
  [FAIL] [sig-node] Pods [It] should fail
Ran 5 of 3206 Specs in 20.1 seconds
`

func TestMeter(t *testing.T) {
	t.Parallel()
	// Pieces may end anywhere, also inside of a character.
	for size := 1; size <= len(output); size += 7 {
		var said bytes.Buffer
		m := newMeter("parallel", &said)
		for rest := []byte(output); len(rest) > 0; {
			n := min(size, len(rest))
			written, err := m.Write(rest[:n])
			assert.NilError(t, err)
			assert.Equal(t, written, n)
			rest = rest[n:]
		}
		m.say()
		assert.Equal(t, m.failed, 1, "pieces of %d", size)
		assert.Check(t, cmp.Contains(said.String(), "parallel: [FAIL] [sig-node] Pods [It] should fail\n"))
		assert.Check(t, cmp.Contains(said.String(), "parallel: 5 of 5 specs ran, 1 failed, after "))
	}
}

func TestMeterCountsAnUnfinishedLine(t *testing.T) {
	t.Parallel()
	var said bytes.Buffer
	m := newMeter("serial", &said)
	_, err := m.Write([]byte("Will run 3 of 9 specs\nS•S•"))
	assert.NilError(t, err)
	m.say()
	m.say()
	assert.Check(t, cmp.Contains(said.String(), "serial: 2 of 3 specs ran, 0 failed"))
}
