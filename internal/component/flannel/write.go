package flannel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/fsnotify/fsnotify"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
)

// WriteCNI waits for flannel's lease and writes the CNI configuration for it.
func WriteCNI(ctx context.Context, e component.Env) error {
	b, err := waitFile(ctx, layout.InsideFlannelEnv)
	if err != nil {
		return err
	}
	lease, err := ParseSubnetEnv(b)
	if err != nil {
		return err
	}
	file, err := RenderCNI(e, lease)
	if err != nil {
		return err
	}
	return component.Write([]component.File{file})
}

// waitFile waits until a file exists and returns its content. The writer renames the file into place, so it is
// complete.
func waitFile(ctx context.Context, path string) ([]byte, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch for %s: %w", path, err)
	}
	defer func() { _ = w.Close() }() // nothing was written
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	if err := w.Add(filepath.Dir(path)); err != nil {
		return nil, fmt.Errorf("watch for %s: %w", path, err)
	}
	for {
		b, err := os.ReadFile(path)
		if !errors.Is(err, fs.ErrNotExist) {
			return b, err
		}
		supervisor.Progress(ctx, "waiting for %s", path)
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for %s: %w", path, ctx.Err())
		case <-w.Events:
		case err := <-w.Errors:
			return nil, fmt.Errorf("watch for %s: %w", path, err)
		}
	}
}
