package parent

import (
	"errors"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

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

// TestAddressRetry: what could not be read is read again though nothing happens, and told once.
func TestAddressRetry(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "address")
	events, err := addressEvents()
	assert.NilError(t, err)
	assert.NilError(t, events.SetReadDeadline(time.Now()), "as if there had been an event")
	reads, done := 0, make(chan struct{})
	read := func() (any, error) {
		switch reads++; {
		case reads <= 3:
			return nil, errors.New("no route")
		case reads == 4:
			close(done)
		}
		return "192.0.2.7", nil
	}
	book := &addressBook{pages: []*page{{path: path, read: read}}, events: events, retry: time.Millisecond}
	var faults []string
	book.done.Go(func() { book.follow(func(err error) { faults = append(faults, err.Error()) }) })
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Error("the page is not read again")
	}
	book.close()
	assert.DeepEqual(t, faults, []string{"no route"})
	var got string
	assert.NilError(t, layout.ReadJSON(path, &got))
	assert.Equal(t, got, "192.0.2.7")
}
