package parent

import (
	"errors"

	"github.com/rootlessnode/rootlessnode/internal/datadir"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// RestoreSnapshot restores a snapshot of the cluster's state (see datadir.RestoreSnapshot). It holds the locks of the node called name, which
// must be stopped.
//
// Errors: of class errdefs.ErrAlreadyRunning if the node is running; otherwise those of datadir.RestoreSnapshot.
//
// Runs in: parent.
func RestoreSnapshot(rt layout.Runtime, d layout.Data, name, snapshot string) (s datadir.Snapshot, err error) {
	lock, err := takeLock(rt)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, lock.remove()) }()
	dataLock, err := takeDataLock(d, name)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, dataLock.Close()) }()
	return datadir.RestoreSnapshot(d, snapshot)
}
