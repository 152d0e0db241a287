// Package criclient calls the container runtime (CRI): it lists images and containers, and stops the pods of a node like
// the kubelet does: preStop hooks, the image's stop signal, the grace period, sidecars after main containers, critical
// pods after ordinary ones.
//
// The CRI client is a separate program, rootlessnode-cri, so that other roles do not link gRPC (docs/dependencies.md has
// the costs). This package starts the program and defines the messages between the two. The subpackage cristop stops the
// pods in that program.
//
// Runs in: child (the node role and its helper program).
package criclient

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
const Program = "rootlessnode-cri"

// Commands of the helper program, its first argument.
const (
	// StopPods reads a Request as JSON from standard input.
	StopPods = "stop-pods"
	// Images, Containers and Conditions print a list of Image, Container or Condition as JSON. Their argument is the runtime's
	// socket.
	Images     = "images"
	Containers = "containers"
	Conditions = "conditions"
)

// Condition is a condition of the runtime (CRI Status), such as RuntimeReady and NetworkReady.
type Condition struct {
	Type    string `json:"type"`
	OK      bool   `json:"ok"`
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// Image is an image of the runtime.
type Image struct {
	// Names are the image's names with a tag, and NamesWithDigest those with the digest of the manifest.
	Names           []string `json:"names,omitempty"`
	NamesWithDigest []string `json:"namesWithDigest,omitempty"`
	// ID is the digest of its configuration. Digest is the digest of its manifest or, if the runtime does not know it, the ID.
	ID     string `json:"id"`
	Digest string `json:"digest"`
	// Size is the size in bytes.
	Size uint64 `json:"size"`
	// Pinned is set if the kubelet's garbage collection keeps the image.
	Pinned bool `json:"pinned,omitempty"`
}

// Container is a container or a pod sandbox of the runtime, with the pod to which it belongs.
type Container struct {
	ID        string `json:"id"`
	Pod       string `json:"pod"`
	Namespace string `json:"namespace"`
	UID       string `json:"uid"`
	// Name is the name of the container in the pod. A sandbox has none.
	Name string `json:"name,omitempty"`
	// ImageID is the ID of the container's image; empty for a sandbox.
	ImageID string `json:"imageID,omitempty"`
}

// ListImages returns the images of the runtime at a socket. path is the helper program.
func ListImages(ctx context.Context, path string, env []string, socket string) ([]Image, error) {
	return list[Image](ctx, path, env, Images, socket)
}

// ListConditions returns the conditions of the runtime at a socket. path is the helper program, which is killed when ctx ends.
func ListConditions(ctx context.Context, path string, env []string, socket string) ([]Condition, error) {
	return list[Condition](ctx, path, env, Conditions, socket)
}

// ListContainers returns the containers and sandboxes of the runtime at a socket. path is the helper program.
func ListContainers(ctx context.Context, path string, env []string, socket string) ([]Container, error) {
	return list[Container](ctx, path, env, Containers, socket)
}

func list[T any](ctx context.Context, path string, env []string, command, socket string) ([]T, error) {
	cmd := exec.CommandContext(ctx, path, command, socket)
	var stderr strings.Builder
	cmd.Env, cmd.Stderr, cmd.WaitDelay = env, &stderr, killDelay
	out, err := cmd.Output()
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("list %s: %w", command, context.Cause(ctx))
	case err != nil:
		return nil, failure(err, stderr.String())
	}
	var all []T
	if err := json.Unmarshal(out, &all); err != nil {
		return nil, fmt.Errorf("list %s: read the output of %s: %w", command, Program, err)
	}
	return all, nil
}

// failure returns the error of the helper program, whose error output says more than its exit status.
func failure(err error, stderr string) error {
	if text := strings.TrimPrefix(strings.TrimSpace(stderr), Program+": "); text != "" {
		return errors.New(text)
	}
	return fmt.Errorf("%s: %w", Program, err)
}

// Request is the input of StopPods.
type Request struct {
	// Socket is the path of the runtime's CRI socket.
	Socket string `json:"socket"`
	// NodeIP is the address of pods in the node's network namespace.
	NodeIP string `json:"nodeIP"`
	// Limit is the time limit for all pods together.
	Limit time.Duration `json:"limit"`
	// CriticalReserve is the part of Limit that is reserved for critical pods.
	CriticalReserve time.Duration `json:"criticalReserve"`
	// Known is set if Pods is complete. Otherwise the pods of the namespace kube-system are treated as critical, and sidecars are
	// unknown.
	Known bool `json:"known"`
	// Pods are the pods of the node according to the API server.
	Pods []Pod `json:"pods,omitempty"`
}

// Pod has the fields of a Pod object that determine how the pod is stopped and that the runtime does not know.
type Pod struct {
	// UID is the UID that the kubelet uses: for a mirror pod, the UID of its static pod.
	UID string `json:"uid"`
	// Critical is set if the pod is stopped after the ordinary pods.
	Critical bool `json:"critical,omitempty"`
	// Containers are the names of the main containers.
	Containers []string `json:"containers,omitempty"`
	// Sidecars are the names of the restartable init containers, in the order of the specification.
	Sidecars []string `json:"sidecars,omitempty"`
	// RestartPolicy is the restart policy of the pod; empty for Always.
	RestartPolicy string `json:"restartPolicy,omitempty"`
	// GraceSeconds replaces the grace period of the specification if the pod is being deleted.
	GraceSeconds *int64 `json:"graceSeconds,omitempty"`
}

// Report is a message of the helper program. It writes one JSON object per line to standard output.
type Report struct {
	// Waiting describes each container that has not stopped yet, such as "default/db/postgres (preStop hook)". It is complete if
	// Changed is set.
	Changed bool     `json:"changed,omitempty"`
	Waiting []string `json:"waiting,omitempty"`
	// Interrupted is a pod whose containers were removed from the runtime, so that it can run again.
	Interrupted *Interrupted `json:"interrupted,omitempty"`
	// Warning is an error that did not end the stop, such as a failed hook.
	Warning string `json:"warning,omitempty"`
	// Error is the reason why some pods could not be stopped. The last report has it.
	Error string `json:"error,omitempty"`
}

// Interrupted is a pod whose containers were removed after they were stopped. Otherwise the kubelet would regard them as finished.
type Interrupted struct {
	UID        string   `json:"uid"`
	Containers []string `json:"containers"`
}

// killDelay is how long Run waits for the end of the helper program's output after it was killed.
const killDelay = time.Second

// Run starts the helper program at path with the request, and calls fn with each report, one at a time. It returns nil if all containers
// have stopped. When ctx ends, it kills the program and returns an error.
func Run(ctx context.Context, path string, env []string, r Request, fn func(Report)) error {
	request, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("stop pods: write request: %w", err)
	}
	cmd := exec.CommandContext(ctx, path, StopPods)
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
		return fmt.Errorf("stop pods: %w", failure(err, stderr.String()))
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
			_, _ = io.Copy(io.Discard, r) // otherwise the program would block
			return fault, err
		}
		fault = report.Error
		fn(report)
	}
}
