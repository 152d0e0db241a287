package nodeexec

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"gotest.tools/v3/assert"
)

// BenchmarkRun measures running `true` through the service, without the start of a command line. Compare it with BenchmarkDirect.
func BenchmarkRun(b *testing.B) {
	dir, err := os.MkdirTemp("", "ne")
	assert.NilError(b, err)
	defer func() { assert.Check(b, os.RemoveAll(dir)) }()
	socket := filepath.Join(dir, "s")
	l, err := Listen(socket)
	assert.NilError(b, err)
	ctx, cancel := context.WithCancel(b.Context())
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, l, Options{Env: []string{"PATH=" + os.Getenv("PATH")}}) }()
	for b.Loop() {
		_, err := Run(ctx, socket, Request{Argv: []string{"true"}, Dir: "/"})
		assert.NilError(b, err)
	}
	cancel()
	assert.NilError(b, <-served)
}

// BenchmarkDirect starts the same program without the service.
func BenchmarkDirect(b *testing.B) {
	for b.Loop() {
		assert.NilError(b, exec.Command("true").Run())
	}
}
