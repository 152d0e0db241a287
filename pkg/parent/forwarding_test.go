package parent

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
	"github.com/sirupsen/logrus"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/portdriver"
)

// TestForwardingReport checks what the node role reads about faults and descriptors, and that nothing is written without a change.
func TestForwardingReport(t *testing.T) {
	t.Parallel()
	f := &forwarding{path: filepath.Join(t.TempDir(), "port-faults.json"), log: logrus.New()}
	written := func() (got layout.Forwarding) {
		assert.NilError(t, layout.ReadJSON(f.path, &got))
		assert.NilError(t, os.Remove(f.path))
		return got
	}
	use := func(open int) layout.DescriptorUse { return layout.DescriptorUse{Open: open, Limit: 1000} }
	unchanged := func(open int) {
		t.Helper()
		assert.NilError(t, f.setDescriptors(use(open)))
		_, err := os.Stat(f.path)
		assert.ErrorIs(t, err, fs.ErrNotExist)
	}
	unchanged(10)
	unchanged(749)
	assert.NilError(t, f.setDescriptors(use(750)))
	assert.DeepEqual(t, *written().Descriptors, use(750))
	unchanged(900)
	unchanged(650)
	fault := portdriver.Fault{Spec: port.Spec{Proto: "tcp4", ParentIP: "127.0.0.1", ParentPort: 80}, Reason: "R", Message: "m"}
	assert.NilError(t, f.setFaults([]portdriver.Fault{fault}))
	got := written()
	assert.DeepEqual(t, got.Faults, []layout.PortFault{{HostIP: "127.0.0.1", HostPort: 80, Proto: "tcp4", Reason: "R", Message: "m"}})
	assert.Assert(t, got.Descriptors != nil)
	assert.NilError(t, f.setDescriptors(use(649)))
	got = written()
	assert.Assert(t, got.Descriptors == nil && len(got.Faults) == 1)
}
