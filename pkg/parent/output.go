package parent

import (
	"errors"
	"io"
	"os"
	"strings"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// nodeLog is the name of the log of the parent, the child and the node role.
const nodeLog = "node"

// excerptLines and excerptBytes limit the excerpt of a log in an error.
const (
	excerptLines = 20
	excerptBytes = 16 << 10
)

// output is the log file that has the standard error of this process, and with it that of RootlessKit's programs and of the roles
// inside. start is the size of the file at the start of the run. The zero output is for a standard error that is not a log file.
type output struct {
	path  string
	start int64
}

// currentOutput returns the output if the standard error is the file path.
func currentOutput(path string) output {
	own, err := os.Stderr.Stat()
	if err != nil {
		return output{}
	}
	if log, err := os.Stat(path); err != nil || !os.SameFile(own, log) {
		return output{}
	}
	return output{path, own.Size()}
}

// attach adds the last lines of this run to an error of the class errdefs.ErrComponent without a log.
func (o output) attach(err error) error {
	if o.path == "" || !errors.Is(err, errdefs.ErrComponent) || errdefs.ReportOf(err).Component != "" {
		return err
	}
	f, open := os.Open(o.path)
	if open != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	from := o.start
	if st, stat := f.Stat(); stat == nil {
		from = max(from, st.Size()-excerptBytes)
	}
	b, _ := io.ReadAll(io.NewSectionReader(f, from, excerptBytes)) // a part is useful too
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return errdefs.WithLog(err, nodeLog, o.path, lines[max(0, len(lines)-excerptLines):])
}
