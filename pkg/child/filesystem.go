package child

import (
	"errors"
	"fmt"

	"github.com/rootless-containers/rootlesskit/v3/pkg/copyup"
	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// reportingDriver is a copy-up driver that writes the cause of a failure to the data dir, because the parent gets only
// the exit status of the child.
type reportingDriver struct {
	copyup.ChildDriver
	data layout.Data
}

// CopyUp opens the data dir first, because its path may not be accessible after a failure.
func (r reportingDriver) CopyUp(dirs []string) ([]string, error) {
	fd, err := unix.Open(r.data.Dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open the data dir %s: %w", r.data.Dir, err)
	}
	defer func() { _ = unix.Close(fd) }()
	copied, err := r.ChildDriver.CopyUp(dirs)
	if err == nil {
		return copied, nil
	}
	err = fmt.Errorf("copy up the host's directories: %w", err)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		err = errdefs.Errorf("%w", err).Hintf("df %[1]s; df -i %[1]s    # free space on this file system, then start the node again", r.data.Dir)
	}
	last := layout.NewData(fmt.Sprintf("/proc/self/fd/%d", fd)).LastExit()
	return copied, errors.Join(err, layout.WriteJSON(last, errdefs.ReportOf(err)))
}
