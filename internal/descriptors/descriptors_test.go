package descriptors

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
)

// envCall makes the test binary call a function and then execute a shell that prints which of the descriptors 3 to 5 are open.
const envCall = "DESCRIPTORS_TEST_CALL"

func TestMain(m *testing.M) {
	call := map[string]func() error{
		"CloseOnExec":    CloseOnExec,
		"CloseInherited": func() error { return CloseInherited(4) },
		"fallback": func() error {
			open, err := list()
			for _, fd := range open {
				unix.CloseOnExec(fd)
			}
			return err
		},
		"nothing": func() error { return nil },
	}[os.Getenv(envCall)]
	if call == nil {
		os.Exit(m.Run())
	}
	err := call()
	if err == nil {
		err = unix.Exec("/bin/sh", []string{"sh", "-c", "for fd in 3 4 5; do [ -e /proc/self/fd/$fd ] && echo $fd; done; exit 0"}, os.Environ())
	}
	fmt.Println(err)
	os.Exit(1)
}

func TestInheritedByNextProgram(t *testing.T) {
	t.Parallel()
	for call, want := range map[string]string{"nothing": "3 4 5", "CloseOnExec": "", "fallback": "", "CloseInherited": "4"} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), envCall+"="+call)
			for range 3 {
				f, err := os.Open(os.DevNull)
				assert.NilError(t, err)
				defer f.Close()
				cmd.ExtraFiles = append(cmd.ExtraFiles, f)
			}
			out, err := cmd.CombinedOutput()
			assert.NilError(t, err, string(out))
			assert.Equal(t, strings.Join(strings.Fields(string(out)), " "), want)
		})
	}
}
