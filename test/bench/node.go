package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// selfReport has the time at which a side reported that it is ready, and the times of its components.
type selfReport struct {
	at    time.Time
	marks map[string]float64 // seconds since the start, by component
	err   error
}

// launch is a start in progress.
type launch struct {
	t0 time.Time
	// pidFile is the file to which RootlessKit writes its child's pid.
	pidFile string
	// pki is the directory that will have the administrator's certificate.
	pki string
	// reported receives one value.
	reported <-chan selfReport
}

// wait waits for the side's own report, or returns an error when ctx ends.
func (l *launch) wait(ctx context.Context) (selfReport, error) {
	select {
	case t := <-l.reported:
		return t, t.err
	case <-ctx.Done():
		return selfReport{}, fmt.Errorf("not ready: %w", context.Cause(ctx))
	}
}

// nodeSide is rootlessnode, run with its command line as a user does.
type nodeSide struct {
	b    *bench
	data string
}

func (s *nodeSide) name() string { return "rootlessnode" }

func (s *nodeSide) command(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, s.b.bin, append([]string{"--name", s.b.name}, args...)...)
}

// reset resets the data dir to that of a node that has its images but no cluster.
func (s *nodeSide) reset(ctx context.Context) error {
	if s.b.setup == nil {
		return s.remove(ctx)
	}
	data := layout.NewData(s.data)
	return s.b.resetData(ctx, s.data, filepath.Base(data.Record()), filepath.Base(data.ImportedImages()), filepath.Base(data.Verified()))
}

func (s *nodeSide) launch(ctx context.Context) (*launch, error) {
	runtimeDir := os.Getenv("XDG_RUNTIME_DIR")
	if runtimeDir == "" {
		return nil, errors.New("XDG_RUNTIME_DIR is not set")
	}
	rt := layout.NewRuntime(runtimeDir, s.b.name)
	up := s.command(ctx, "up", "--kubeconfig-merge=false", "--data-dir", s.data, "--set", "api.port="+strconv.Itoa(s.b.port), "--timeout", s.b.limit.String())
	var out strings.Builder
	up.Stdout, up.Stderr = &out, &out
	done := make(chan selfReport, 1)
	l := &launch{
		t0: time.Now(), pidFile: filepath.Join(rt.StateDir(), "child_pid"), pki: layout.NewData(s.data).PKI(), reported: done,
	}
	if err := up.Start(); err != nil {
		return nil, err
	}
	go func() {
		err := up.Wait()
		t := selfReport{at: time.Now()}
		if err != nil {
			t.err = fmt.Errorf("rootlessnode up: %w:\n%s", err, out.String())
		} else if st, err := s.status(ctx); err != nil {
			t.err = err
		} else {
			t.marks = st.Timings
		}
		done <- t
	}()
	return l, nil
}

func (s *nodeSide) status(ctx context.Context) (*status.Status, error) {
	out, err := s.command(ctx, "status", "-o", "json").Output()
	if err != nil {
		return nil, fmt.Errorf("rootlessnode status: %w", err)
	}
	st := &status.Status{}
	return st, json.Unmarshal(out, st)
}

// stop stops the node and checks that nothing is left. It succeeds if the node does not run.
func (s *nodeSide) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.b.limit)
	defer cancel()
	st, err := s.status(ctx)
	if err != nil {
		return err
	}
	if out, err := s.command(ctx, "down").CombinedOutput(); err != nil {
		return fmt.Errorf("rootlessnode down: %w: %s", err, strings.TrimSpace(string(out)))
	}
	var errs []error
	for _, path := range []string{st.Cgroup.Path, st.RuntimeDir} {
		if path == "" {
			continue
		}
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("rootlessnode down left %s", path))
		}
	}
	return errors.Join(errs...)
}

// remove removes the data dir.
func (s *nodeSide) remove(ctx context.Context) error {
	if _, err := os.Stat(s.data); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	out, err := exec.CommandContext(ctx, s.b.rootlesskit, "rm", "-rf", s.data).CombinedOutput()
	if err != nil {
		return fmt.Errorf("remove %s: %w: %s", s.data, err, strings.TrimSpace(string(out)))
	}
	return nil
}
