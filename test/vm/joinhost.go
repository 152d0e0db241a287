package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// joinHost runs TestJoinMachine on this host: it adds the machine as a worker to a node of the account.
type joinHost struct {
	account, dir, log string
	key               string // the file with the SSH key for the machine
}

// newJoinHost prepares the account, with a copy of the build.
func newJoinHost(ctx context.Context, h *host, tree string) (*joinHost, error) {
	dir := filepath.Join(h.stage, "join")
	j := &joinHost{account: h.account, dir: dir, log: filepath.Join(h.results, "joined-host.log"), key: filepath.Join(h.stage, "key")}
	for _, args := range [][]string{
		{"cp", "-r", tree, dir},
		{j.program(), "host", "setup", "--user", h.account, "--create-user"},
		{"ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", j.key},
	} {
		if err := do(ctx, args...); err != nil {
			return nil, err
		}
	}
	return j, nil
}

func (j *joinHost) program() string { return filepath.Join(j.dir, "bin", "rootlessnode") }

// run runs the test, whose waits have limits, for the machine with this process. If the test could not report its end to the machine, the
// machine would wait for it: stop is called some time after the test.
func (j *joinHost) run(ctx context.Context, machine int, stop func()) {
	const grace = 3 * time.Minute
	log, err := os.Create(j.log)
	if err != nil {
		say("%v", err)
		stop()
		return
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, filepath.Join(j.dir, "bin", "e2e.test"), "-test.v", "-test.timeout=0", "-test.run=^TestJoinMachine$")
	cmd.Env = append(os.Environ(), "ROOTLESSNODE_E2E_MACHINE="+strconv.Itoa(machine), "ROOTLESSNODE_E2E_MACHINE_KEY="+j.key,
		"ROOTLESSNODE_E2E_ACCOUNTS="+j.account, "ROOTLESSNODE_E2E_OUT="+j.dir, "ROOTLESSNODE_E2E_IMAGE="+filepath.Join(j.dir, "busybox.tar"),
		"ROOTLESSNODE_E2E_PATIENCE=5", "ROOTLESSNODE_TEST_PROMISES=root,e2e-machine,e2e-build,e2e-account")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGTERM) }
	cmd.WaitDelay = time.Minute
	if err := cmd.Run(); err != nil {
		say("the test on the host: %v", err)
	}
	select {
	case <-ctx.Done():
	case <-time.After(grace):
		stop()
	}
}

// end removes the node that the test may have left.
func (j *joinHost) end() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	_ = exec.CommandContext(ctx, j.program(), "host", "enter", "--user", j.account, "--command", "--",
		j.program(), "--name", "e2e-machine-a", "down", "--delete-data").Run() // best effort
}
