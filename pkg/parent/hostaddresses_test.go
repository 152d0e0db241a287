package parent

import (
	"net/netip"
	"path/filepath"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

func TestHostAddresses(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "addresses")
	book, err := keepAddresses(path, func(err error) { t.Error(err) })
	assert.NilError(t, err)
	book.close()
	var list []layout.HostAddress
	assert.NilError(t, layout.ReadJSON(path, &list))
	found := false
	for _, a := range list {
		assert.Assert(t, a.Interface != "" && a.IP.IsValid(), "%+v", a)
		found = found || a.IP == netip.MustParseAddr("127.0.0.1")
	}
	assert.Assert(t, found, "%v", list)
	_, err = keepAddresses(filepath.Join(path, "none"), nil)
	assert.ErrorContains(t, err, "write")
}
