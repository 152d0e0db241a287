package suite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"time"
)

// Pass is one execution of a part of the suite.
type Pass struct {
	// Name names the pass's files and what is printed of it.
	Name string
	// Labels selects by labels, in ginkgo's filter language.
	Labels string
	// Focus are regular expressions, of which a spec's full name must match one; none selects all.
	Focus []string
	// Skip are regular expressions; a spec that matches one is left out.
	Skip []string
	// Procs is the number of processes; a pass with one runs one spec at a time.
	Procs int
	// Limit ends the pass.
	Limit time.Duration
}

// Runner runs passes against one node.
type Runner struct {
	// Programs is the directory that Build filled.
	Programs string
	// Kubeconfig is an administrator's, valid on this side of the node; Kubectl is the client that specs call.
	Kubeconfig, Kubectl string
	// Out is where logs and reports go.
	Out string
	// Progress gets a line for each spec that failed, and one every half minute.
	Progress io.Writer
}

// Run executes a pass and returns the path of its JSON report. That specs fail is no error of Run's: the report says so.
// A pass that ended before its report was written is one. Cancelling interrupts the suite, which then cleans up after the
// specs that run, and ends it after a minute.
func (r Runner) Run(ctx context.Context, pass Pass) (string, error) {
	report := pass.Name + ".json"
	logPath := filepath.Join(r.Out, pass.Name+".log")
	log, err := os.Create(logPath)
	if err != nil {
		return "", err
	}
	defer log.Close()
	if err := os.Remove(filepath.Join(r.Out, report)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return "", err
	}

	cmd := exec.CommandContext(ctx, filepath.Join(r.Programs, ginkgoProgram), r.arguments(pass, report)...)
	cmd.Dir = r.Out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute
	m := newMeter(pass.Name, r.Progress)
	cmd.Stdout = io.MultiWriter(log, m)
	cmd.Stderr = cmd.Stdout
	stop := m.tick()
	runErr := cmd.Run()
	stop()
	if cmd.Process != nil {
		// What outlives ginkgo would go on working on the node.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // mostly there is no such group any more
	}

	path := filepath.Join(r.Out, report)
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return "", fmt.Errorf("pass %s: %w", pass.Name, context.Cause(ctx))
	case runErr != nil && !errors.As(runErr, &exit):
		return "", fmt.Errorf("pass %s: %w", pass.Name, runErr)
	}
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("pass %s left no report (%w); its output is in %s", pass.Name, errors.Join(runErr, err), logPath)
	}
	return path, nil
}

func (r Runner) arguments(pass Pass, report string) []string {
	args := []string{
		fmt.Sprintf("--procs=%d", pass.Procs), "--timeout=" + pass.Limit.String(), "--no-color",
		"--output-dir=" + r.Out, "--json-report=" + report,
	}
	if pass.Labels != "" {
		args = append(args, "--label-filter="+pass.Labels)
	}
	for _, focus := range pass.Focus {
		args = append(args, "--focus="+focus)
	}
	for _, skip := range pass.Skip {
		args = append(args, "--skip="+skip)
	}
	return append(args, filepath.Join(r.Programs, suiteProgram), "--",
		"--provider=local", "--num-nodes=1", "--kubeconfig="+r.Kubeconfig, "--kubectl-path="+r.Kubectl,
		"--disable-log-dump", "--dump-logs-on-failure=true", "--e2e-output-dir="+r.Out)
}

// Exactly returns a focus that selects the spec of that full name alone.
func Exactly(name string) string { return regexp.QuoteMeta(name) + "$" }
