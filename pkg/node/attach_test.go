package node

import (
	"os"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// TestAttachNeedsNoHostName checks that a node can be stopped, inspected and deleted when the host's name is invalid: the configuration of
// the running node counts.
func TestAttachNeedsNoHostName(t *testing.T) {
	home(t)
	o := Options{hostname: func() (string, error) { return "under_score", nil }}
	_, err := New(config.Default(), o)
	assert.ErrorContains(t, err, "nodeName")
	n, err := Attach(config.DefaultName, o)
	assert.NilError(t, err)
	s, err := n.Status(t.Context())
	assert.NilError(t, err)
	assert.Equal(t, s.State, status.NodeStopped)
	assert.NilError(t, n.Stop(t.Context()))

	running := config.Default()
	running.Name, running.NodeName, running.DataDir = config.DefaultName, "former", t.TempDir()
	assert.NilError(t, os.MkdirAll(n.Runtime().Dir, 0o700))
	assert.NilError(t, layout.WriteJSON(n.Runtime().Config(), running))
	n, err = Attach(config.DefaultName, o)
	assert.NilError(t, err)
	assert.Equal(t, n.Config().NodeName, "former")
	assert.Equal(t, n.Data().Dir, running.DataDir)

	_, err = Attach("a/b", o)
	assert.ErrorIs(t, err, errdefs.ErrConfig)
}
