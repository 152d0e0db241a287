package noderole

import (
	"context"
	"errors"
	"io/fs"

	"github.com/rootlessnode/rootlessnode/internal/filewatch"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// uplinkWatch reports whether the process of the network driver runs. The parent publishes that in a file, because the process is
// outside the node's namespaces.
type uplinkWatch struct {
	path string // Runtime.NetworkFault
}

func (w uplinkWatch) Run(ctx context.Context, report conditionReporter) error {
	faults, err := filewatch.New(w.path, filewatch.JSON[layout.NetworkFault])
	if err != nil {
		return err
	}
	defer faults.Close()
	for {
		f, err := faults.Read()
		if err != nil && !errors.Is(err, fs.ErrNotExist) { // it does not exist before the first fault
			return err
		}
		c := status.Condition{OK: f.Message == "", Message: f.Message}
		if !c.OK {
			c.Reason = "ProcessEnded"
		}
		report.set(c)
		select {
		case <-ctx.Done():
			return nil
		case <-faults.Changed():
		}
	}
}
