package child

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"gotest.tools/v3/assert"
)

func TestNameProtocols(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "protocols")
	assert.NilError(t, nameProtocols(path))
	made, err := os.ReadFile(path)
	assert.NilError(t, err)
	assert.Assert(t, regexp.MustCompile(`(?m)^tcp\s+6\b`).Match(made), "%s", made)

	assert.NilError(t, os.WriteFile(path, []byte("the host's"), 0o644))
	assert.NilError(t, nameProtocols(path))
	kept, err := os.ReadFile(path)
	assert.NilError(t, err)
	assert.Equal(t, string(kept), "the host's")

	assert.ErrorContains(t, nameProtocols(filepath.Join(t.TempDir(), "missing", "protocols")), "name the protocols inside")
}
