package testutil

import (
	"os/exec"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
)

// Script writes an executable shell script with the text after its first line. A child process writes it: a descriptor of the test
// process would be inherited by programs that other tests start at the same time, and execve(2) refuses a file that is open
// for writing (ETXTBSY).
func Script(t testing.TB, path, text string) {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", `cat >"$1" && chmod 0755 "$1"`, "sh", path)
	cmd.Stdin = strings.NewReader("#!/bin/sh\n" + text)
	out, err := cmd.CombinedOutput()
	assert.NilError(t, err, "%s", out)
}
