package trial

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// device is the tap device of StepEnter and StepUplink.
const device = "trial5"

// outside does the steps that RootlessKit's parent does in the namespaces of its child. pid is the waiting helper.
func (r Request) outside(ctx context.Context, pid int, result Result) {
	if r.NSEnter == "" || r.Work.IP == "" || r.Work.Tun == "" {
		return
	}
	// The command is that of pkg/network/parentutils.
	err := command(ctx, "", r.NSEnter, "-t", strconv.Itoa(pid), "-n", "-m", "-U", "--preserve-credentials",
		r.Work.IP, "tuntap", "add", "name", device, "mode", "tap")
	result.add(StepEnter, err)
	if err == nil && r.Slirp != "" {
		result.add(StepUplink, uplink(ctx, r.Slirp, pid))
	}
}

// uplink starts slirp4netns without its confinement, which the start drops too if the host does not permit it, and kills it when it reports
// that it is ready. The error is the last line of its output.
func uplink(ctx context.Context, program string, pid int) error {
	ready, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, program, "--mtu", "1500", "-r", "3", strconv.Itoa(pid), device)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = &out, &out, []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: unix.SIGKILL}
	err = cmd.Start()
	_ = w.Close() // so that the pipe ends with the program
	if err != nil {
		return err
	}
	n, _ := ready.Read(make([]byte, 1)) // 0 at the end of the pipe
	if n > 0 {
		_ = cmd.Process.Kill() // it may have ended
	}
	err = cmd.Wait()
	if n > 0 {
		return nil
	}
	if text := bytes.TrimSpace(out.Bytes()); len(text) > 0 {
		return errors.New(string(text[bytes.LastIndexByte(text, '\n')+1:]))
	}
	if err == nil {
		err = errors.New("it ended without an error")
	}
	return err
}
