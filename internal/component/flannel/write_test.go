package flannel

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"gotest.tools/v3/assert"
)

func TestWaitFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "dir", "subnet.env")
	type result struct {
		b   []byte
		err error
	}
	done := make(chan result, 1)
	go func() {
		b, err := waitFile(t.Context(), path)
		done <- result{b, err}
	}()
	tmp := filepath.Join(t.TempDir(), "tmp")
	assert.NilError(t, os.WriteFile(tmp, []byte("whole"), 0o600))
	for { // waitFile creates the directory
		if err := os.Rename(tmp, path); err == nil {
			break
		} else if !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	r := <-done
	assert.NilError(t, r.err)
	assert.Equal(t, string(r.b), "whole")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := waitFile(ctx, path+".never")
	assert.ErrorIs(t, err, context.Canceled)
}
