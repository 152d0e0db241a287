package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// tailLines is the number of lines of a failed command's output in its error.
const tailLines = 20

// execution is one run of a build command.
type execution struct {
	command command
	dir     string
	log     string      // the file for the output of the command
	compile func(n int) // called with the number of packages compiled so far
}

// start runs the command and waits for its end. When ctx is done it kills the
// command and all of its descendants in the process group.
func (e execution) start(ctx context.Context) (err error) {
	if err := os.MkdirAll(filepath.Dir(e.log), 0o755); err != nil {
		return err
	}
	log, err := os.Create(e.log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()

	cmd := exec.CommandContext(ctx, e.command.args[0], e.command.args[1:]...)
	cmd.Dir = e.dir
	cmd.Env = slices.Concat(os.Environ(), baseEnv, e.command.env)
	// Use a new process group, because the go command does not stop its compilers.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	reader, writer := io.Pipe()
	cmd.Stdout, cmd.Stderr = writer, writer

	var tail []string
	read := make(chan struct{})
	go func() {
		defer close(read)
		tail = follow(io.TeeReader(reader, log), e.compile)
	}()
	err = cmd.Run()
	_ = writer.Close() // never fails
	<-read
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	text := strings.Join(tail, "\n")
	return hinted(fmt.Errorf("%s: %w\n%s\nlog: %s", filepath.Base(e.command.args[0]), err, text, e.log), hintFor(text))
}

// baseEnv overrides the user's settings for other builds. GOFLAGS must not be
// empty, because the go command would then use that of its configuration file.
var baseEnv = []string{"GOFLAGS=-mod=readonly", "GOWORK=off", "LC_ALL=C"}

// follow reads the output of go build -v: the compiled packages, one per line, and
// messages. It returns the last messages.
func follow(r io.Reader, compiled func(n int)) []string {
	var tail []string
	packages := 0
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		line = strings.TrimRight(line, "\n")
		switch {
		case isPackage(line):
			packages++
			compiled(packages)
		case line != "":
			if tail = append(tail, line); len(tail) > tailLines {
				tail = tail[1:]
			}
		}
		if err != nil {
			return tail
		}
	}
}

func isPackage(line string) bool {
	return line != "" && !strings.ContainsAny(line, " \t:#")
}

// hintFor returns a hint for errors that the host causes, not the sources.
func hintFor(output string) string {
	for _, h := range []struct{ symptom, hint string }{
		{"proxyconnect", "check the proxy settings (HTTPS_PROXY)"},
		{"dial tcp", "the Go module proxy (go env GOPROXY) is not reachable; check the network"},
		{"no space left on device", "free some space: a cold build needs about 6 GB for Go's caches (go env GOCACHE GOMODCACHE)"},
		{"signal: killed", "a tool was killed, usually because of insufficient memory: try again with --lanes 1"},
		{"checksum mismatch", "a module does not match go.sum: do not use it; clear the cache with go clean -modcache and try again"},
		{"requires go >=", "install that Go release, or allow the go command to download it (GOTOOLCHAIN=auto)"},
	} {
		if strings.Contains(output, h.symptom) {
			return h.hint
		}
	}
	return ""
}

// outputOf runs a built program with a minimal environment and returns its output.
func outputOf(ctx context.Context, program string, args []string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=/nonexistent"}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), nil
}

func writeJSON(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return writeFile(path, append(data, '\n'))
}
