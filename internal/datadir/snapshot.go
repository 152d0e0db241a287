package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/rootlessnode/rootlessnode/internal/atomicfile"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// Snapshot is a copy of the cluster's state, the database of etcd, with what a restore of it must know. The node is stopped when it is
// taken and when it is restored.
type Snapshot struct {
	// Name is the name of its directory: the version of Kubernetes and the time.
	Name    string    `json:"name"`
	Created time.Time `json:"created"`
	// Size is the size in bytes.
	Size int64 `json:"size"`
	// Versions are those of the programs that had used the data, and EncryptionKey is that of Identity.
	Versions      Versions `json:"versions"`
	EncryptionKey string   `json:"encryptionKey"`
}

const (
	// keptSnapshots is the number of snapshots that stay when another one is taken, including that one.
	keptSnapshots = 2
	// snapshotFile is the file with the Snapshot in the directory of a snapshot, next to the directory memberDir.
	snapshotFile = "snapshot.json"
	// memberDir is the directory in etcd's data directory that contains all of its data.
	memberDir = "member"
	// partial begins the names of directories that are not complete.
	partial = ".partial-"
)

// Snapshots returns the snapshots in a data dir, the newest first.
//
// Errors: those of damaged snapshots, together with the others.
func Snapshots(d layout.Data) ([]Snapshot, error) {
	entries, err := os.ReadDir(d.Snapshots())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	errs := []error{err}
	var all []Snapshot
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") {
			continue
		}
		var s Snapshot
		if err := layout.ReadState(filepath.Join(d.Snapshots(), e.Name(), snapshotFile), &s); err != nil {
			errs = append(errs, fmt.Errorf("read snapshot %s: %w", e.Name(), err))
			continue
		}
		s.Name = e.Name()
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b Snapshot) int { return b.Created.Compare(a.Created) })
	return all, errors.Join(errs...)
}

// FindSnapshot returns the snapshot called name.
//
// Errors: of class errdefs.ErrConfig, with the names of the existing snapshots, if there is no snapshot of that name.
func FindSnapshot(d layout.Data, name string) (Snapshot, error) {
	all, err := Snapshots(d)
	var names []string
	for _, s := range all {
		if s.Name == name {
			return s, nil
		}
		names = append(names, s.Name)
	}
	if err != nil {
		return Snapshot{}, err
	}
	hint := "# there are no snapshots in this data dir"
	if len(names) > 0 {
		hint = "# existing snapshots: " + strings.Join(names, " ")
	}
	return Snapshot{}, errdefs.Config("snapshot %q: not found", name).Hint(hint)
}

// DeleteSnapshot removes the snapshot called name. The errors are those of FindSnapshot, and one of class errdefs.ErrConfig if the data depends
// on the snapshot.
func DeleteSnapshot(d layout.Data, name string) error {
	if _, err := FindSnapshot(d, name); err != nil {
		return err
	}
	if r, _, err := readRecord(d); err == nil && r.Restoring == name {
		return errdefs.Config("delete snapshot %s: its restore was interrupted; complete it first", name).Do(errdefs.RestoreSnapshot, name)
	}
	return os.RemoveAll(filepath.Join(d.Snapshots(), name))
}

// takeSnapshot copies the state of the cluster of the record r, and removes old snapshots except keep. It does nothing if there is no
// cluster. The caller holds the locks of the node, whose etcd does not run.
func takeSnapshot(d layout.Data, r *Record, keep string) (*Snapshot, error) {
	member := filepath.Join(etcdDir(d), memberDir)
	size, err := treeSize(member)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	now := time.Now().UTC().Truncate(time.Millisecond)
	s := Snapshot{
		Name: r.Versions.Kubernetes + "-" + now.Format("20060102T150405.000Z"), Created: now, Size: size,
		Versions: r.Versions, EncryptionKey: r.EncryptionKey,
	}
	if err == nil {
		err = clearPartial(d)
	}
	if err == nil {
		err = checkSpace(d, size)
	}
	stage := filepath.Join(d.Snapshots(), partial+s.Name)
	for _, step := range []func() error{
		func() error { return os.MkdirAll(stage, 0o700) },
		func() error { return copyTree(member, filepath.Join(stage, memberDir)) },
		func() error { return layout.WriteState(filepath.Join(stage, snapshotFile), s) },
		func() error { return atomicfile.RenameDir(stage, filepath.Join(d.Snapshots(), s.Name)) },
	} {
		if err == nil {
			err = step()
		}
	}
	if err != nil {
		return nil, snapshotFault(d, fmt.Errorf("take a snapshot of the cluster's state in %s: %w", d.Snapshots(), err))
	}
	return &s, prune(d, keep)
}

// snapshotFault adds the commands that free space to an error.
func snapshotFault(d layout.Data, err error) error {
	hint := errdefs.Text("# free some space:", "df -h "+hostinfo.Quote(d.Dir))
	if all, _ := Snapshots(d); len(all) > 0 {
		hint = hint.Text("# or delete the oldest snapshot:").Do(errdefs.DeleteSnapshot, all[len(all)-1].Name)
	}
	return errdefs.WithSteps(errdefs.Class(errdefs.ErrPreflight, err), hint)
}

// clearPartial removes what interrupted snapshots have left.
func clearPartial(d layout.Data) error {
	left, err := filepath.Glob(filepath.Join(d.Snapshots(), partial+"*"))
	for _, dir := range left {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return err
}

// prune removes all but the newest snapshots and keep.
func prune(d layout.Data, keep string) error {
	all, err := Snapshots(d)
	for i, s := range all {
		if i >= keptSnapshots && s.Name != keep {
			err = errors.Join(err, os.RemoveAll(filepath.Join(d.Snapshots(), s.Name)))
		}
	}
	return err
}

func etcdDir(d layout.Data) string {
	dir, _ := d.OnHost(layout.InsideEtcd)
	return dir
}
