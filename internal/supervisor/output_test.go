package supervisor

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"
	"gotest.tools/v3/assert"
)

// TestLogAfterFullDisk checks that the log file is written again when the disk has space again, without a restart of the component.
func TestLogAfterFullDisk(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "kubelet.log")
	assert.NilError(t, os.Symlink("/dev/full", path))
	synctest.Test(t, func(t *testing.T) {
		o := newOutput(2, 1<<20, logrus.New())
		assert.NilError(t, o.open(path))
		write := func(line string) {
			_, err := o.Write([]byte(line + "\n"))
			assert.NilError(t, err)
		}
		write("one")
		write("two")
		time.Sleep(logRetry)
		write("three") // still full
		assert.NilError(t, os.Remove(path))
		write("four")
		time.Sleep(logRetry)
		write("five")
		write("six")
		o.close()
		assert.DeepEqual(t, o.last(), []string{"five", "six"})
	})
	got, err := os.ReadFile(path)
	assert.NilError(t, err)
	assert.Equal(t, string(got), "\n[19 bytes of output were not logged: the log file could not be written]\nfive\nsix\n")
}
