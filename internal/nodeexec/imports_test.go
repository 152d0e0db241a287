package nodeexec

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
)

// TestNoHTTP checks that the exec path does not link an HTTP stack, so that it starts fast.
func TestNoHTTP(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Skipf("needs the go command: %v", err)
	}
	assert.Check(t, !slices.Contains(strings.Fields(string(out)), "net/http"))
}
