package parent

import (
	"net/netip"
	"path/filepath"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

func TestHostAddresses(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "addresses")
	pages := (&run{Options: Options{Config: config.Default(), Runtime: layout.NewRuntime(t.TempDir(), "x")}}).addressPages(t.Context())
	assert.Equal(t, len(pages), 1, "a node on its own needs no address for others")
	pages[0].path = path
	book, err := keepAddresses(func(err error) { t.Error(err) }, pages...)
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
	_, err = keepAddresses(nil, &page{path: filepath.Join(path, "none"), read: pages[0].read})
	assert.ErrorContains(t, err, "write")
}
