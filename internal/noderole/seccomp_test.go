package noderole

import (
	"path/filepath"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

func TestRuncSeccomp(t *testing.T) {
	t.Parallel()
	for want, script := range map[string]string{
		"":                           `echo '{"ociVersionMin": "1.0.0", "linux": {"seccomp": {"enabled": true}}}'`,
		"built without seccomp":      `echo '{"linux": {"seccomp": {"enabled": false}}}'`,
		"built without":              `echo '{}'`,
		"invalid character":          `echo runc`,
		"check seccomp support of /": `exit 1`,
		"exit status 2":              `exit 2`,
		"without seccomp":            `echo '{"linux": {}}'`,
		"unexpected end of JSON":     `true`,
	} {
		runc := filepath.Join(t.TempDir(), "runc")
		testutil.Script(t, runc, script+"\n")
		err := runcSeccomp(t.Context(), runc)
		if want == "" {
			assert.NilError(t, err)
			continue
		}
		assert.ErrorContains(t, err, want)
	}
	assert.NilError(t, kernelSeccomp())
}

// TestSeccompDefaultOff checks that nothing is tested and no warning is reported.
func TestSeccompDefaultOff(t *testing.T) {
	t.Parallel()
	cfg := config.Default()
	cfg.Kubelet.SeccompDefault = false
	enabled, warnings := seccompDefault(t.Context(), cfg)
	assert.Assert(t, !enabled && len(warnings) == 0)
}
