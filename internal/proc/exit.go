package proc

import (
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// ExitText describes how a process ended: "exited with status 1", or "killed by SIGKILL".
func ExitText(status syscall.WaitStatus) string {
	if !status.Signaled() {
		return fmt.Sprintf("exited with status %d", status.ExitStatus())
	}
	name := unix.SignalName(status.Signal())
	if name == "" {
		name = "signal " + strconv.Itoa(int(status.Signal()))
	}
	return "killed by " + name
}

// ErrorText is ExitText for the process of an *exec.ExitError in err. ok is false if there is none.
func ErrorText(err error) (text string, ok bool) {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return "", false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ExitText(status), ok
}
