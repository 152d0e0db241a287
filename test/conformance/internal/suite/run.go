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
	// Name is used in file names and messages.
	Name string
	// Labels selects specs by labels, in ginkgo's filter language.
	Labels string
	// Focus has regular expressions. Specs are selected whose full name matches one of them, or all specs if it is empty.
	Focus []string
	// Skip has regular expressions. Specs that match one of them are excluded.
	Skip []string
	// Procs is the number of processes. With one process, specs run one at a time.
	Procs int
	// Limit is the time limit of the pass.
	Limit time.Duration
}

// Runner runs passes against one node.
type Runner struct {
	// Programs is the output directory of Build.
	Programs string
	// StorageDriver is a file that describes a storage driver, for which the suite then has additional specs. Empty: none.
	StorageDriver string
	// Kubeconfig is an administrator's kubeconfig for use on the host. Kubectl is the program that specs call.
	Kubeconfig, Kubectl string
	// Out is the directory for logs and reports.
	Out string
	// Progress receives a line for each failed spec, and a progress message every half minute.
	Progress io.Writer
}

// Run executes a pass and returns the path of its JSON report. Failed specs are not an error, because they are in the report. Run returns an
// error if the pass ended without a report. When ctx is canceled, the suite is interrupted and cleans up after the running specs; it is
// killed after a minute.
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
		// Kill processes that outlive ginkgo, because they would continue to use the node.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // usually the group has ended
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
		return "", fmt.Errorf("pass %s wrote no report (%w); its output is in %s", pass.Name, errors.Join(runErr, err), logPath)
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
	args = append(args, filepath.Join(r.Programs, suiteProgram), "--",
		"--provider=local", "--num-nodes=1", "--kubeconfig="+r.Kubeconfig, "--kubectl-path="+r.Kubectl,
		"--disable-log-dump", "--dump-logs-on-failure=true", "--e2e-output-dir="+r.Out)
	if r.StorageDriver != "" {
		args = append(args, "--storage.testdriver="+r.StorageDriver)
	}
	return args
}

// Exactly returns a focus that selects only the spec with this full name.
func Exactly(name string) string { return regexp.QuoteMeta(name) + "$" }
