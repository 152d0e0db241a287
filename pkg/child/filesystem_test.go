package child

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// failing is a copy-up driver that fails after it has moved the data dir.
type failing struct {
	dir string
	err error
}

func (f failing) CopyUp([]string) ([]string, error) {
	return nil, errors.Join(os.Rename(f.dir, f.dir+".moved"), f.err)
}

// TestCopyUpReports checks that the message, class and hints of a failed copy-up are written to the data dir.
func TestCopyUpReports(t *testing.T) {
	t.Parallel()
	for _, fault := range []error{
		errdefs.WithHint(errdefs.Class(errdefs.ErrPreflight, errors.New("in the way")), "mv"), fmt.Errorf("link: %w", unix.ENOSPC),
	} {
		data := layout.NewData(t.TempDir() + "/data")
		assert.NilError(t, os.Mkdir(data.Dir, 0o700))
		_, err := reportingDriver{failing{data.Dir, fault}, data}.CopyUp(nil)
		assert.ErrorIs(t, err, fault)
		var report errdefs.Report
		assert.NilError(t, layout.ReadJSON(layout.NewData(data.Dir+".moved").LastExit(), &report))
		assert.Assert(t, strings.HasPrefix(report.Message, "copy up the host's directories: "), report.Message)
		assert.Equal(t, len(report.Hints), 1)
		assert.Equal(t, errors.Is(report.Err(), errdefs.ErrPreflight), errors.Is(fault, errdefs.ErrPreflight))
	}
}
