package child

import (
	"errors"
	"fmt"

	"github.com/rootless-containers/rootlesskit/v3/pkg/copyup"
	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// copyUpDriver is a copy-up driver with errors for users.
type copyUpDriver struct {
	copyup.ChildDriver
	dataDir string
}

func (d copyUpDriver) CopyUp(dirs []string) ([]string, error) {
	copied, err := d.ChildDriver.CopyUp(dirs)
	if err == nil {
		return copied, ensureHosts(hostsFile)
	}
	err = fmt.Errorf("copy up the host's directories: %w", err)
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		err = errdefs.Errorf("%w", err).Hintf("df %[1]s; df -i %[1]s    # free space on this file system, then start the node again", d.dataDir)
	}
	return copied, err
}
