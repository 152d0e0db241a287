package parent

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

func TestHostAddresses(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "addresses")
	rt := layout.NewRuntime(t.TempDir(), "x")
	assert.NilError(t, os.MkdirAll(rt.Dir, 0o700))
	files := (&run{Options: Options{Config: config.Default(), Runtime: rt}}).addressFiles(t.Context())
	assert.Equal(t, len(files), 3, "a single node needs no address for other nodes")
	files[0].path = path
	watcher, err := watchAddresses(func(err error) { t.Error(err) }, files...)
	assert.NilError(t, err)
	watcher.close()
	var list []layout.HostAddress
	assert.NilError(t, layout.ReadJSON(path, &list))
	found := false
	for _, a := range list {
		assert.Assert(t, a.Interface != "" && a.IP.IsValid(), "%+v", a)
		found = found || a.IP == netip.MustParseAddr("127.0.0.1")
	}
	assert.Assert(t, found, "%v", list)
	_, err = watchAddresses(nil, &addressFile{path: filepath.Join(path, "none"), read: files[0].read})
	assert.ErrorContains(t, err, "write")
}

// TestAddressRetry checks that an address is read again after an error without an event, and that repeated errors are reported once.
func TestAddressRetry(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "address")
	events, err := addressEvents()
	assert.NilError(t, err)
	assert.NilError(t, events.SetReadDeadline(time.Now()), "simulate an event")
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
	watcher := &addressWatcher{files: []*addressFile{{path: path, read: read}}, events: events, retry: time.Millisecond}
	var reported []string
	watcher.done.Go(func() { watcher.follow(func(err error) { reported = append(reported, err.Error()) }) })
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Error("the address was not read again")
	}
	watcher.close()
	assert.DeepEqual(t, reported, []string{"no route"})
	var got string
	assert.NilError(t, layout.ReadJSON(path, &got))
	assert.Equal(t, got, "192.0.2.7")
}
