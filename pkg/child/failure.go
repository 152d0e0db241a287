package child

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/proc"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// failures reports the error of a role inside to the parent, which gets only the exit status of the child. The file is in
// the runtime dir, so that a full disk does not prevent the report.
type failures struct{ runtime *os.Root }

// openFailures opens the runtime dir, because its path may not be accessible later: while the directories of the host are
// replaced, or after the runtime dir was removed.
func openFailures(rt layout.Runtime) (failures, error) {
	root, err := os.OpenRoot(rt.Dir)
	if err != nil {
		return failures{}, fmt.Errorf("open the runtime dir: %w", err)
	}
	return failures{root}, nil
}

// report writes err for the parent and returns it. An error without a class gets errdefs.ErrComponent. If another role
// inside has written its error before, that error is kept, because it is the cause of this one.
func (f failures) report(err error) error {
	defer func() { _ = f.runtime.Close() }() // nothing was written through it
	if err == nil {
		return nil
	}
	if errdefs.ExitCode(err) == errdefs.ExitOther {
		err = errdefs.Class(errdefs.ErrComponent, err)
	}
	b, encode := json.Marshal(errdefs.ReportOf(err))
	if encode != nil {
		return errors.Join(err, encode)
	}
	file, open := f.runtime.OpenFile(filepath.Base(layout.Runtime{}.Failure()), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	switch {
	case errors.Is(open, fs.ErrExist):
		return err
	case open != nil:
		return errors.Join(err, fmt.Errorf("report the error to the parent: %w", open))
	}
	_, write := file.Write(b)
	return errors.Join(err, write, file.Close())
}

// describeExit replaces exit statuses in an error of RootlessKit's child. If the node role has ended with an error, that is
// not its reason, which the node role itself reports.
func describeExit(err error, target []string) error {
	text, ended := proc.ErrorText(err)
	if !ended {
		return err
	}
	what, _, _ := strings.Cut(err.Error(), ": exit status ")
	what, _, _ = strings.Cut(what, ": signal: ")
	if what == fmt.Sprintf("command %v exited", target) {
		return fmt.Errorf("the node role ended: %s", text)
	}
	return fmt.Errorf("%s: the program ended: %s", what, text)
}
