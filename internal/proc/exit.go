package proc

import (
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
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

// Failure returns the error of a program that failed with err: its output in one line, which says more than the exit status, or how it
// ended if there is no output. Other errors, such as a program that is missing, are kept. It returns nil if err is nil.
func Failure(err error, output []byte) error {
	ended, ok := ErrorText(err)
	if !ok {
		return err
	}
	if text := strings.ReplaceAll(strings.TrimSpace(string(output)), "\n", "; "); text != "" {
		return errors.New(text)
	}
	return errors.New(ended)
}
