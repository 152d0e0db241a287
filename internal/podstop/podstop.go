// Package podstop stops the pods of a node the way the kubelet stops a pod: preStop hooks, the image's stop signal, the
// grace period, sidecars after main containers, critical pods after ordinary ones. It talks to the container runtime
// through the CRI, after the kubelet has ended.
//
// The CRI client is a program of its own, rootlessnode-podstop, so that no other role pays for gRPC: docs/dependencies.md
// has the figures. This package starts that program and holds the messages between the two; its subpackage cristop is
// what the program runs.
//
// Runs in: child (the node role and its helper program).
package podstop

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"
)

// Program is the file name of the helper program.
const Program = "rootlessnode-podstop"

// Request is what the helper program reads from its standard input, as JSON.
type Request struct {
	// Socket is the path of the runtime's CRI socket.
	Socket string `json:"socket"`
	// NodeIP is the address of pods in the node's network namespace.
	NodeIP string `json:"nodeIP"`
	// Limit is the time for all pods together.
	Limit time.Duration `json:"limit"`
	// CriticalReserve is the part of Limit that is kept for critical pods.
	CriticalReserve time.Duration `json:"criticalReserve"`
	// Known reports that Pods is complete. Otherwise the pods of the namespace kube-system count as critical, and the
	// sidecars are not known.
	Known bool `json:"known"`
	// Pods is what the API server has about the pods of the node.
	Pods []Pod `json:"pods,omitempty"`
}

// Pod is the part of a Pod object that decides how it is stopped and that the runtime does not have.
type Pod struct {
	// UID is the one that the kubelet uses: for a mirror pod that of its static pod.
	UID string `json:"uid"`
	// Critical: the pod is stopped after the ordinary pods.
	Critical bool `json:"critical,omitempty"`
	// Containers are the names of the main containers.
	Containers []string `json:"containers,omitempty"`
	// Sidecars are the names of the restartable init containers, in the order of the specification.
	Sidecars []string `json:"sidecars,omitempty"`
	// RestartPolicy of the pod; empty for Always.
	RestartPolicy string `json:"restartPolicy,omitempty"`
	// GraceSeconds replaces the grace period of the specification for a pod that is being deleted.
	GraceSeconds *int64 `json:"graceSeconds,omitempty"`
}

// Report is one line of the helper program's standard output, as JSON.
type Report struct {
	// Waiting is what is being waited for, one text a container: "default/db/postgres (preStop hook)". A report with
	// Changed has the complete list.
	Changed bool     `json:"changed,omitempty"`
	Waiting []string `json:"waiting,omitempty"`
	// Interrupted is a pod of which the runtime has nothing any more, so that it can run again.
	Interrupted *Interrupted `json:"interrupted,omitempty"`
	// Warning is a fault that did not end the work, such as a failed hook.
	Warning string `json:"warning,omitempty"`
	// Error is why not all pods were stopped. It is in the last report.
	Error string `json:"error,omitempty"`
}

// Interrupted is a pod whose containers were removed after they had been stopped, because the kubelet would take them for
// ended otherwise.
type Interrupted struct {
	UID        string   `json:"uid"`
	Containers []string `json:"containers"`
}

// killDelay is how long the helper program may keep its output open after it was killed.
const killDelay = time.Second

// Run starts the helper program at path, gives it the request, and calls fn with each report, one at a time. It returns when
// the program has ended; nil means that every container has stopped. The program is killed when ctx ends.
func Run(ctx context.Context, path string, env []string, r Request, fn func(Report)) error {
	request, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("stop pods: write request: %w", err)
	}
	cmd := exec.CommandContext(ctx, path)
	cmd.Env, cmd.WaitDelay = env, killDelay
	cmd.Stdin = strings.NewReader(string(request))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("stop pods: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("stop pods: start %s: %w", Program, err)
	}
	fault, readErr := read(out, fn)
	err = cmd.Wait()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("stop pods: %w", context.Cause(ctx))
	case fault != "":
		return fmt.Errorf("stop pods: %s", fault)
	case err != nil:
		return fmt.Errorf("stop pods: %s: %w: %s", Program, err, strings.TrimSpace(stderr.String()))
	case readErr != nil:
		return fmt.Errorf("stop pods: read reports of %s: %w", Program, readErr)
	}
	return nil
}

// read passes reports to fn until the end of r and returns the error of the last one.
func read(r io.Reader, fn func(Report)) (fault string, err error) {
	d := json.NewDecoder(bufio.NewReader(r))
	for {
		var report Report
		if err := d.Decode(&report); err != nil {
			if errors.Is(err, io.EOF) {
				return fault, nil
			}
			_, _ = io.Copy(io.Discard, r) // the program must be able to end
			return fault, err
		}
		fault = report.Error
		fn(report)
	}
}
