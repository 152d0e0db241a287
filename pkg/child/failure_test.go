package child

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// failing is a copy-up driver that fails after it has moved the runtime dir.
type failing struct {
	dir string
	err error
}

func (f failing) CopyUp([]string) ([]string, error) {
	return nil, errors.Join(os.Rename(f.dir, f.dir+".moved"), f.err)
}

// TestFailures checks that the message, class and hints of the first error inside are written to the runtime dir, even if its path is
// not accessible then.
func TestFailures(t *testing.T) {
	t.Parallel()
	for _, fault := range []error{
		errdefs.WithHint(errdefs.Class(errdefs.ErrPreflight, errors.New("in the way")), "mv"), fmt.Errorf("link: %w", unix.ENOSPC),
	} {
		rt := layout.Runtime{Dir: t.TempDir() + "/run"}
		assert.NilError(t, os.Mkdir(rt.Dir, 0o700))
		first, err := openFailures(rt)
		assert.NilError(t, err)
		second, err := openFailures(rt)
		assert.NilError(t, err)
		none, err := openFailures(rt)
		assert.NilError(t, err)
		assert.NilError(t, none.report(nil))

		_, err = copyUpDriver{failing{rt.Dir, fault}, "/data"}.CopyUp(nil)
		assert.ErrorIs(t, err, fault)
		assert.ErrorIs(t, first.report(err), fault)
		assert.Error(t, second.report(errors.New("a consequence")), "a consequence")
		var report errdefs.Report
		assert.NilError(t, layout.ReadJSON(layout.Runtime{Dir: rt.Dir + ".moved"}.Failure(), &report))
		assert.Assert(t, strings.HasPrefix(report.Message, "copy up the host's directories: "), report.Message)
		assert.Equal(t, len(report.Hints), 1)
		class := errdefs.ErrComponent
		if errors.Is(fault, errdefs.ErrPreflight) {
			class = errdefs.ErrPreflight
		}
		assert.ErrorIs(t, report.Err(), class)
	}
}

func TestDescribeExit(t *testing.T) {
	t.Parallel()
	target := []string{"/proc/self/exe", "node"}
	exit := exec.Command("sh", "-c", "exit 7").Run()
	killed := exec.Command("sh", "-c", "kill -KILL $$").Run()
	for text, err := range map[string]error{
		"the node role ended: exited with status 7":                      fmt.Errorf("command %v exited: %w", target, exit),
		"the node role ended: killed by SIGKILL":                         fmt.Errorf("command %v exited: %w", target, killed),
		"executing [[ip link]]: the program ended: exited with status 7": fmt.Errorf("executing [[ip link]]: %w", exit),
		"write /etc/resolv.conf: no space left on device":                fmt.Errorf("write /etc/resolv.conf: %w", unix.ENOSPC),
		"executing [[ip]]: the program ended: killed by SIGKILL":         fmt.Errorf("executing [[ip]]: %w", killed),
	} {
		assert.Error(t, describeExit(err, target), text)
	}
	assert.NilError(t, describeExit(nil, target))
}
