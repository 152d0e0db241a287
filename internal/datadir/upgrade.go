package datadir

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/rootlessnode/rootlessnode/internal/atomicfile"
	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// Use prepares the data for the programs of a start, whose versions it records: it completes an interrupted restore, and takes a snapshot
// of the cluster's state if these programs have another minor version than those that used the data before. It can be repeated after an
// interruption. The caller holds the node's locks. taken is nil if no snapshot was necessary.
//
// Errors: of class errdefs.ErrPreflight if the snapshot cannot be written.
//
// Runs in: parent.
func Use(d layout.Data, now Versions) (taken *Snapshot, err error) {
	was, _, err := readRecord(d)
	if err != nil {
		return nil, err
	}
	if was.Restoring != "" {
		if was, err = completeRestore(d, was); err != nil {
			return nil, err
		}
	}
	if upgrades(was.Versions, now) {
		if taken, err = takeSnapshot(d, was, ""); err != nil {
			return nil, err
		}
	}
	return taken, UpdateIdentity(d, func(i *Identity) { i.Versions = now })
}

// RestoreSnapshot replaces the state of the cluster by the snapshot called name, after it has taken a snapshot of the present state. It records its
// intention first, so that an interrupted restore is completed by the next start or restore. The caller holds the node's locks.
//
// Errors: as for FindSnapshot and Use.
//
// Runs in: parent.
func RestoreSnapshot(d layout.Data, name string) (Snapshot, error) {
	s, err := FindSnapshot(d, name)
	if err != nil {
		return s, err
	}
	was, _, err := readRecord(d)
	if err != nil {
		return s, err
	}
	if was.Restoring == "" { // otherwise the present state is incomplete
		if _, err := takeSnapshot(d, was, name); err != nil {
			return s, err
		}
	}
	now := *was
	now.Restoring, now.Versions, now.EncryptionKey = name, s.Versions, s.EncryptionKey
	if err := unwritable(d.Dir, writeRecord(d, now, was)); err != nil {
		return s, err
	}
	_, err = completeRestore(d, &now)
	return s, err
}

// completeRestore copies the snapshot of the record was to etcd's data directory, and returns the record that it has written afterwards.
func completeRestore(d layout.Data, was *Record) (*Record, error) {
	etcd := etcdDir(d)
	stage, member := filepath.Join(etcd, partial+memberDir), filepath.Join(etcd, memberDir)
	_, err := FindSnapshot(d, was.Restoring)
	for _, step := range []func() error{
		func() error { return os.RemoveAll(stage) },
		func() error { return os.MkdirAll(etcd, 0o700) },
		func() error { return copyTree(filepath.Join(d.Snapshots(), was.Restoring, memberDir), stage) },
		func() error { return os.RemoveAll(member) },
		func() error { return atomicfile.RenameDir(stage, member) },
	} {
		if err == nil {
			err = step()
		}
	}
	now := *was
	now.Restoring = ""
	if err == nil {
		err = writeRecord(d, now, was)
	}
	if err != nil {
		return nil, snapshotFault(d, fmt.Errorf("restore the snapshot %s: %w", was.Restoring, err))
	}
	return &now, nil
}
