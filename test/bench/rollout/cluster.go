package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	namespace = "bench-rollout"
	replicas  = 3
	// rolloutLimit bounds one update.
	rolloutLimit = 2 * time.Minute
	// startLimit bounds the time until the first pods are ready and the port is open.
	startLimit = time.Minute
)

// cluster runs the workload in the node.
type cluster struct {
	options
	program string // of the server, as the node sees it
}

// prepare copies this program to where the node sees it.
func prepare(ctx context.Context, o options) (*cluster, error) {
	if o.dir == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, err
		}
		o.dir = filepath.Join(home, ".rootlessnode-bench-rollout")
	}
	if err := os.MkdirAll(o.dir, 0o755); err != nil {
		return nil, err
	}
	c := &cluster{options: o, program: filepath.Join(o.dir, "rollout")}
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return nil, err
	}
	defer self.Close()
	copied, err := os.OpenFile(c.program, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o755)
	if err != nil {
		return nil, err
	}
	if _, err = io.Copy(copied, self); err != nil {
		return nil, errors.Join(err, copied.Close())
	}
	return c, copied.Close()
}

// manifest is the workload for a program.
func (c *cluster) manifest(p program) string {
	lifecycle := ""
	if p.PreStop > 0 {
		lifecycle = fmt.Sprintf("lifecycle: {preStop: {sleep: {seconds: %d}}}", p.PreStop)
	}
	return fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: %[1]s}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: %[1]s}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 10
      volumes: [{name: program, hostPath: {path: %[3]q, type: File}}]
      containers:
      - name: server
        image: %[4]s
        imagePullPolicy: Never
        command: [/rollout, serve, "8080"]
        readinessProbe: {httpGet: {port: 8080}, periodSeconds: 1}
        volumeMounts: [{name: program, mountPath: /rollout, readOnly: true}]
        %[5]s
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: %[1]s}
spec:
  type: NodePort
  selector: {app: web}
  ports:
  - {name: tcp, port: 80, targetPort: 8080, nodePort: %[6]d}
  - {name: udp, protocol: UDP, port: 80, targetPort: 8080, nodePort: %[6]d}
`, namespace, replicas, c.program, c.image, lifecycle, c.port)
}

// measure updates a program under load. The workload is removed afterwards.
func (c *cluster) measure(ctx context.Context, p program) (r result, err error) {
	r.Program = p
	if _, err := c.kubectl(ctx, c.manifest(p), "apply", "-f", "-"); err != nil {
		return r, err
	}
	defer func() {
		_, deleted := c.kubectl(context.WithoutCancel(ctx), "", "delete", "namespace", namespace, "--wait")
		err = errors.Join(err, deleted)
	}()
	if err := c.started(ctx); err != nil {
		return r, err
	}
	stop := load(ctx, c.port, c.clients)
	err = c.update(ctx)
	requests, gap := stop()
	for _, x := range requests {
		r.add(x)
	}
	r.Ended, r.Gap = replicas*c.updates, gap.Seconds()
	return r, err
}

// started waits until the pods are ready and the port is open.
func (c *cluster) started(ctx context.Context) error {
	if err := c.rolledOut(ctx); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		err := get(fmt.Sprintf("http://127.0.0.1:%d/", c.port))
		if err == nil || !pause(ctx, 100*time.Millisecond) {
			return err
		}
	}
}

func (c *cluster) update(ctx context.Context) error {
	pause(ctx, c.rest)
	for range c.updates {
		if _, err := c.kubectl(ctx, "", "-n", namespace, "rollout", "restart", "deployment/web"); err != nil {
			return err
		}
		if err := c.rolledOut(ctx); err != nil {
			return err
		}
		pause(ctx, c.rest)
	}
	return ctx.Err()
}

func (c *cluster) rolledOut(ctx context.Context) error {
	_, err := c.kubectl(ctx, "", "-n", namespace, "rollout", "status", "deployment/web", "--timeout", rolloutLimit.String())
	return err
}

// kubectl runs kubectl inside and returns its output.
func (c *cluster) kubectl(ctx context.Context, input string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, c.bin, append([]string{"--name", c.name, "kubectl"}, args...)...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

// pause waits, and reports whether ctx continues.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}
