package nodeexec

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
)

// The exec path must start fast, so it must not link an HTTP stack.
func TestNoHTTP(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Skipf("needs the go command: %v", err)
	}
	assert.Check(t, !slices.Contains(strings.Fields(string(out)), "net/http"))
}
