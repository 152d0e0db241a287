package userns

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// envPrint makes the test binary print the result of Inside and exit.
const envPrint = "USERNS_TEST_PRINT"

func TestMain(m *testing.M) {
	if os.Getenv(envPrint) != "" {
		fmt.Print(Inside())
		return
	}
	testutil.QuickChildren()
	os.Exit(m.Run())
}

func TestInsideAnotherUserNamespace(t *testing.T) {
	t.Parallel()
	testutil.Require(t, testutil.UserNS)
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Env = append(os.Environ(), envPrint+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	assert.NilError(t, err, "%s", out)
	assert.Equal(t, string(out), "true")
}
