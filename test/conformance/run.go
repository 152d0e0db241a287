package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rootlessnode/rootlessnode/test/conformance/internal/outcome"
	"github.com/rootlessnode/rootlessnode/test/conformance/internal/suite"
)

// options of a run.
type options struct {
	dir, out, rootlessnode, kubectl, name, set string
	focus                                      []string
	procs                                      int
	expectations, records                      string
}

func run(ctx context.Context, args []string) (err error) {
	var o options
	fs := flag.NewFlagSet("conformance run", flag.ContinueOnError)
	fs.StringVar(&o.dir, "dir", "", "output directory of `conformance build`")
	fs.StringVar(&o.out, "out", "", "directory for logs, reports and the summary")
	fs.StringVar(&o.rootlessnode, "rootlessnode", "rootlessnode", "rootlessnode program of the node under test")
	fs.StringVar(&o.kubectl, "kubectl", "kubectl", "the kubectl that specs call")
	fs.StringVar(&o.name, "name", "default", "name of the node under test")
	fs.StringVar(&o.set, "set", setAll, "specs to run: "+strings.Join(setNames(), ", "))
	fs.Func("focus", "of the set, only specs whose name matches this regular expression; repeatable", func(v string) error {
		o.focus = append(o.focus, v)
		return nil
	})
	fs.IntVar(&o.procs, "procs", defaultProcs, "number of specs that run in parallel")
	fs.StringVar(&o.expectations, "expectations", "", "file with the specs that are expected to fail, with the reasons")
	fs.StringVar(&o.records, "records", "", "directory with records of earlier runs, to compare with the record for the same kind of node")
	if err := parse(fs, args); err != nil {
		return err
	}
	if o.dir == "" || o.out == "" {
		return fmt.Errorf("%w: -dir and -out are needed", errUsage)
	}
	passes, err := o.passes()
	if err != nil {
		return err
	}
	node, err := o.node(ctx)
	if err != nil {
		return err
	}
	expected, last, err := o.inputs(node)
	if err != nil {
		return err
	}
	if err := node.cleanUp(ctx); err != nil {
		return err
	}
	start := time.Now()
	result, err := o.execute(ctx, node, passes, expected)
	// Clean up after an interrupted run too. An error of the cleanup does not prevent the summary.
	cleanupErr := node.cleanUp(context.WithoutCancel(ctx))
	if err != nil {
		return errors.Join(err, cleanupErr)
	}
	return errors.Join(o.summarize(result, expected, last, node, time.Since(start)), cleanupErr)
}

// inputs reads the expectations and the record of the last run.
func (o options) inputs(node testNode) (expected outcome.Expectations, last outcome.Run, err error) {
	if o.expectations != "" {
		data, readErr := os.ReadFile(o.expectations)
		if readErr == nil {
			expected, readErr = outcome.ParseExpectations(data)
		}
		err = errors.Join(err, readErr)
	}
	if o.records != "" {
		data, readErr := os.ReadFile(filepath.Join(o.records, node.recordFile()))
		switch {
		case errors.Is(readErr, os.ErrNotExist): // the first run
		case readErr != nil:
			err = errors.Join(err, readErr)
		default:
			last, readErr = outcome.Decode(data)
			err = errors.Join(err, readErr)
		}
	}
	return expected, last, err
}

// execute imports the images and runs the passes. Then it runs the specs that failed unexpectedly a second time, one at a time.
func (o options) execute(ctx context.Context, node testNode, passes []suite.Pass, expected outcome.Expectations) (outcome.Run, error) {
	out, err := filepath.Abs(o.out)
	if err != nil {
		return outcome.Run{}, err
	}
	programs, err := filepath.Abs(filepath.Join(o.dir, programsDir))
	if err != nil {
		return outcome.Run{}, err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return outcome.Run{}, err
	}
	fmt.Println("importing images")
	if err := node.importImages(ctx, filepath.Join(o.dir, imageArchive)); err != nil {
		return outcome.Run{}, err
	}
	runner := suite.Runner{Programs: programs, Kubeconfig: node.Kubeconfig, Kubectl: o.kubectl, Out: out, Progress: os.Stdout}
	if o.set == setStorage {
		runner.StorageDriver = filepath.Join(out, "storage.yaml")
		if err := os.WriteFile(runner.StorageDriver, storageDriver, 0o600); err != nil {
			return outcome.Run{}, err
		}
	}
	var runs []outcome.Run
	for _, pass := range passes {
		r, err := onePass(ctx, runner, pass)
		if err != nil {
			return outcome.Run{}, err
		}
		runs = append(runs, r)
	}
	result := outcome.Merge(runs...)
	if len(result.Specs) == 0 {
		return result, fmt.Errorf("%w: no spec is selected by set %s and focus %q", errUsage, o.set, o.focus)
	}
	names := result.Again()
	for _, f := range outcome.Compare(result, expected, outcome.CompareOptions{Delegated: node.delegated()}).Expected {
		names = slices.DeleteFunc(names, func(name string) bool { return name == f.Spec.Name })
	}
	if len(names) == 0 || len(names) > maxRetries {
		return result, nil
	}
	again := suite.Pass{Name: "again", Procs: 1, Limit: passLimit}
	for _, name := range names {
		again.Focus = append(again.Focus, suite.Exactly(name))
	}
	r, err := onePass(ctx, runner, again)
	return outcome.Retry(result, r), err
}

func onePass(ctx context.Context, runner suite.Runner, pass suite.Pass) (outcome.Run, error) {
	report, err := runner.Run(ctx, pass)
	if err != nil {
		return outcome.Run{}, err
	}
	f, err := os.Open(report)
	if err != nil {
		return outcome.Run{}, err
	}
	r, err := outcome.ParseReport(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return outcome.Run{}, fmt.Errorf("report of pass %s: %w", pass.Name, err)
	}
	return r, nil
}

// testNode is the status of the node under test.
type testNode struct {
	command []string
	State   string `json:"state"`
	// Versions of rootlessnode and of Kubernetes.
	Version    string `json:"version"`
	Kubernetes string `json:"kubernetes"`
	Kubeconfig string `json:"kubeconfig"`
	Cgroup     struct {
		Controllers []string `json:"controllers"`
		Unenforced  []string `json:"unenforced"`
	} `json:"cgroup"`
}

func (o options) node(ctx context.Context) (testNode, error) {
	n := testNode{command: []string{o.rootlessnode, "--name", o.name}}
	out, err := n.run(ctx, "status", "-o", "json")
	if err != nil {
		return n, err
	}
	if err := json.Unmarshal(out, &n); err != nil {
		return n, fmt.Errorf("status of node %s: %w", o.name, err)
	}
	if n.State != "ready" {
		return n, fmt.Errorf("node %s is %s, but must be ready; run: rootlessnode --name %s up", o.name, n.State, o.name)
	}
	return n, nil
}

// delegated reports whether the limits of pods are enforced.
func (n testNode) delegated() bool {
	return !slices.ContainsFunc(n.Cgroup.Unenforced, func(c string) bool { return c == "cpu" || c == "memory" || c == "pids" })
}

// recordFile returns the name of the record for this kind of node.
func (n testNode) recordFile() string {
	if n.delegated() {
		return "delegated.txt"
	}
	return "hybrid.txt"
}

func (n testNode) run(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, n.command[0], append(n.command[1:], args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("rootlessnode %s: %w\n%s", strings.Join(args, " "), err, stderr.Bytes())
	}
	return out, nil
}

func (n testNode) importImages(ctx context.Context, archive string) error {
	_, err := n.run(ctx, "images", "import", archive)
	return err
}

// hostFiles are files that specs with hostPath volumes leave in /tmp, which the node shares with the host. A later run of another account
// could not write to them.
var hostFiles = []string{"/tmp/job-e2e", "/tmp/sub-path", "/tmp/test-file"}

// cleanUp removes files and namespaces that specs left, mostly interrupted ones.
func (n testNode) cleanUp(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Minute)
	defer cancel()
	_, err := n.run(ctx, "kubectl", "delete", "namespace", "--selector=e2e-framework", "--ignore-not-found")
	_, execErr := n.run(ctx, append([]string{"exec", "--", "rm", "-rf", "--"}, hostFiles...)...)
	if execErr != nil {
		execErr = fmt.Errorf("%w(these files belong to another account: remove them as root)", execErr)
	}
	return errors.Join(err, execErr)
}
