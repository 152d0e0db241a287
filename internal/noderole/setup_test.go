package noderole

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"gotest.tools/v3/assert"
)

func TestEnsureProtocols(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "protocols")
	assert.NilError(t, ensureProtocols(path))
	made, err := os.ReadFile(path)
	assert.NilError(t, err)
	assert.Assert(t, regexp.MustCompile(`(?m)^tcp\s+6\b`).Match(made), "%s", made)

	assert.NilError(t, os.WriteFile(path, []byte("the host's"), 0o644))
	assert.NilError(t, ensureProtocols(path))
	kept, err := os.ReadFile(path)
	assert.NilError(t, err)
	assert.Equal(t, string(kept), "the host's")

	assert.ErrorContains(t, ensureProtocols(filepath.Join(t.TempDir(), "missing", "protocols")), "create the list of protocols")
}
