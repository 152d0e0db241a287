package proc

import (
	"os/exec"
	"testing"

	"gotest.tools/v3/assert"
)

// TestFailure checks that the output of a program replaces its exit status.
func TestFailure(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ script, want string }{
		{"echo no such device >&2; echo try again >&2; exit 1", "no such device; try again"},
		{"exit 3", "exited with status 3"},
		{"kill -KILL $$", "killed by SIGKILL"},
	} {
		out, err := exec.Command("/bin/sh", "-c", c.script).CombinedOutput()
		assert.Error(t, Failure(err, out), c.want)
	}
	_, err := exec.Command("/no-such-program").CombinedOutput()
	assert.ErrorContains(t, Failure(err, nil), "no such file")
	assert.NilError(t, Failure(nil, []byte("output")))
}
