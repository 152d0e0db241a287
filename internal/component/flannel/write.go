package flannel

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/filewatch"
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
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, err
	}
	w, err := filewatch.New(path, os.ReadFile)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	for {
		b, err := w.Read()
		if !errors.Is(err, fs.ErrNotExist) {
			return b, err
		}
		supervisor.Progress(ctx, "waiting for %s", path)
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for %s: %w", path, ctx.Err())
		case <-w.Changed():
		}
	}
}
