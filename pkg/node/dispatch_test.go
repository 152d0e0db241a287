package node

import (
	"io"
	"os"
	"os/exec"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// TestForeignDescriptors checks that a helper process closes a pipe that the host program inherited.
func TestForeignDescriptors(t *testing.T) {
	for _, role := range []string{layout.RoleParent, layout.RoleRemove} {
		t.Run(role, func(t *testing.T) {
			pipe := func() (r, w *os.File) {
				r, w, err := os.Pipe()
				assert.NilError(t, err)
				t.Cleanup(func() { _ = r.Close(); _ = w.Close() })
				return r, w
			}
			configR, configW := pipe()
			reportR, reportW := pipe()
			foreignR, foreignW := pipe()
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), layout.EnvRole+"="+role, testutil.QuickExit)
			cmd.ExtraFiles = []*os.File{inputFD - 3: configR, reportFD - 3: reportW, lifelineFD - 3: configR, lifelineFD - 2: foreignW}
			assert.NilError(t, cmd.Start())
			assert.NilError(t, foreignW.Close())
			assert.NilError(t, reportW.Close())
			_, err := io.ReadAll(foreignR) // returns while the helper waits for its config
			assert.NilError(t, err)
			assert.NilError(t, configW.Close())
			assert.ErrorContains(t, cmd.Wait(), "exit status")
			report, err := io.ReadAll(reportR)
			assert.NilError(t, err)
			assert.Assert(t, len(report) > 0, "the report descriptor must stay open")
		})
	}
}
