package node

import (
	"testing"

	logtest "github.com/sirupsen/logrus/hooks/test"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/preflight"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// TestWarningsOnce checks that a start with HiddenWarnings logs only new and changed warnings, and that others log all.
func TestWarningsOnce(t *testing.T) {
	testutil.Require(t, testutil.Subids)
	home(t)
	warn := func(text string) preflight.Finding {
		return preflight.Finding{Code: "RN-X", Level: preflight.LevelWarn, Message: text}
	}
	start := func(o Options, findings ...preflight.Finding) (logged int) {
		log, hook := logtest.NewNullLogger()
		o.Log = log
		n, err := New(config.Default(), o)
		assert.NilError(t, err)
		logWarnings(n, findings)
		logged = len(hook.AllEntries())
		assert.NilError(t, claim(t.Context(), n))
		return logged
	}
	hidden := 0
	quiet := Options{HiddenWarnings: func(count int) { hidden = count }}
	assert.Equal(t, start(quiet, warn("a"), warn("b")), 2)
	assert.Equal(t, hidden, 0)
	assert.Equal(t, start(quiet, warn("a"), warn("changed")), 1)
	assert.Equal(t, hidden, 1)
	assert.Equal(t, start(Options{}, warn("a"), warn("changed")), 2)

	n, err := New(config.Default(), Options{})
	assert.NilError(t, err)
	fresh, err := NewWarnings(n, []string{"x"})
	assert.NilError(t, err)
	assert.DeepEqual(t, fresh, []string{"x"})
	fresh, err = NewWarnings(n, []string{"x", "y"})
	assert.NilError(t, err)
	assert.DeepEqual(t, fresh, []string{"y"})
	assert.Equal(t, start(quiet, warn("a")), 0, "the warnings of the host are still known")
}
