package datadir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/atomicfile"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// Format is the version of the data dir that this program writes. See layout.StateFormat.
const Format = layout.StateFormat

// Record marks a directory as the data dir of one node (layout.Data.Record).
type Record struct {
	Format int `json:"format"`
	// Name is the node's name (--name).
	Name    string    `json:"name"`
	Created time.Time `json:"created"`
	// IDs is the id map with which the files in the data dir were created.
	IDs IDs `json:"ids"`
	// Deleting is set while the data is being removed. Data with it is incomplete.
	Deleting bool `json:"deleting"`
	// Restoring is the name of the snapshot whose restore has begun and not ended, or "".
	Restoring string `json:"restoring"`
	Identity
	// Settings has what the user set of the configuration at the last start. nil: unknown, because an earlier version or a program
	// with a configuration of its own started the node.
	Settings *config.Settings `json:"settings"`
	// Requested is the config with which the user started the running node, as YAML, with later reloads, and without the defaults that
	// depend on the host. It differs from Settings if some of these take effect at the next start.
	Requested string `json:"requested"`
	// Warnings are those that the last start has shown to the user.
	Warnings []string `json:"warnings"`
}

// maxRecord is the maximum size of a record in bytes. A record contains the configuration file.
const maxRecord = 8 << 20

// ReadRecord reads the record of a data dir.
//
// Errors: fs.ErrNotExist if there is no record; of class errdefs.ErrConfig if the record is malformed, has a newer format, or belongs to
// an account other than uid.
func ReadRecord(d layout.Data, uid int) (*Record, error) {
	r, owner, err := readRecord(d)
	switch {
	case owner >= 0 && owner != uid:
		return nil, recordFault(d, "# use the account with uid "+fmt.Sprint(owner)+", or choose another dataDir",
			"%s belongs to uid %d, but this account has uid %d", d.Record(), owner, uid)
	case err != nil:
		return nil, err
	case r.IDs.UID != uid:
		return nil, recordFault(d, "# use the account with uid "+fmt.Sprint(r.IDs.UID)+", or choose another dataDir",
			"the data belongs to uid %d, but this account has uid %d", r.IDs.UID, uid)
	}
	return r, nil
}

// recordFault returns an error about the record of d, of class errdefs.ErrConfig.
func recordFault(d layout.Data, hint, format string, args ...any) error {
	err := fmt.Errorf("read the record of data dir %s: %w", d.Dir, fmt.Errorf(format, args...))
	return errdefs.WithHint(errdefs.Class(errdefs.ErrConfig, err), hint)
}

// readRecord returns the record of a data dir and the owner of its file, or -1 if the file is not readable. The errors are those of
// ReadRecord, without those about owners.
func readRecord(d layout.Data) (*Record, int, error) {
	b, owner, err := readRegular(d.Record())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, -1, err
	}
	if err != nil {
		return nil, -1, recordFault(d, "", "%w", err)
	}
	var head struct {
		Format int `json:"format"`
	}
	var r Record
	err = json.Unmarshal(b, &head)
	switch {
	case err == nil && head.Format > Format:
		return nil, owner, fmt.Errorf("read the record of data dir %s: %w", d.Dir, layout.NewerError(d.Record(), head.Format))
	case err == nil:
		err = json.Unmarshal(b, &r)
	}
	if err == nil {
		err = r.validate()
	}
	if err != nil {
		return nil, owner, recordFault(d, "rm "+hostinfo.Quote(d.Record())+"    # the next start writes it again, if the data is valid", "%s: %w", d.Record(), err)
	}
	return &r, owner, nil
}

func (r *Record) validate() error {
	if r.Format < 1 || r.Name == "" {
		return errors.New("the format or the name is missing")
	}
	for _, all := range [][]IDRange{r.IDs.Subuids, r.IDs.Subgids} {
		if len(all) == 0 {
			return errors.New("the subordinate ids are missing")
		}
		for _, one := range all {
			if one.Start < 0 || one.Count < 1 || one.Start+one.Count > 1<<32 {
				return fmt.Errorf("invalid range of %d ids from %d", one.Count, one.Start)
			}
		}
	}
	return nil
}

// readRegular reads a regular file of at most maxRecord bytes and returns its owner. It does not follow symbolic links.
func readRegular(path string) (b []byte, owner int, err error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, 0, err
	}
	if !st.Mode().IsRegular() {
		return nil, 0, fmt.Errorf("%s is not a regular file", path)
	}
	b, err = io.ReadAll(io.LimitReader(f, maxRecord+1))
	if err == nil && len(b) > maxRecord {
		err = fmt.Errorf("%s is larger than %d bytes", path, maxRecord)
	}
	return b, int(st.Sys().(*syscall.Stat_t).Uid), err
}

// Claim creates the data dir and the record of the node called name if they do not exist. It removes the access of other accounts to
// the directory, and adds new ids to an existing record.
//
// Errors: as for ReadRecord; of class errdefs.ErrConfig if the record is that of another node; of class errdefs.ErrPreflight if the ids
// have changed (see IDsError) or the directory is not writable.
//
// Runs in: parent.
func Claim(d layout.Data, name string, ids IDs, account string) error {
	if err := makePrivate(d.Dir, ids.UID); err != nil {
		return unwritable(d.Dir, err)
	}
	created := Record{Format: Format, Name: name, Created: time.Now().UTC().Truncate(time.Second), IDs: ids}
	was, err := ReadRecord(d, ids.UID)
	if errors.Is(err, fs.ErrNotExist) {
		if err = writeRecord(d, created, nil); err == nil {
			return nil
		}
		if !errors.Is(err, fs.ErrExist) {
			return unwritable(d.Dir, err)
		}
		was, err = ReadRecord(d, ids.UID) // another start has created it meanwhile
	}
	if err != nil {
		return err
	}
	if err := was.checkName(d, name); err != nil {
		return err
	}
	if changes := was.IDs.Changes(ids); len(changes) > 0 {
		return errdefs.WithSteps(IDsError(d, name, account, changes), DeleteHint(name))
	}
	if idText(was.IDs.Subuids) == idText(ids.Subuids) && idText(was.IDs.Subgids) == idText(ids.Subgids) {
		return nil
	}
	updated := *was
	updated.IDs = ids
	return unwritable(d.Dir, writeRecord(d, updated, was))
}

// checkName returns an error if the record belongs to another node.
func (r *Record) checkName(d layout.Data, name string) error {
	if r.Name == name {
		return nil
	}
	return errdefs.Config("data dir %s belongs to node %q, not to node %q", d.Dir, r.Name, name).
		Hint("# choose another dataDir, or use the node to which it belongs:").With(errdefs.Hint{{Action: errdefs.Start, Node: r.Name}})
}

// makePrivate creates a directory with mode 0700. If the directory exists and belongs to the account, it removes the access of other
// accounts.
func makePrivate(dir string, uid int) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	st, err := os.Stat(dir)
	if err != nil {
		return err
	}
	const others = 0o077
	if st.Mode().Perm()&others == 0 || int(st.Sys().(*syscall.Stat_t).Uid) != uid {
		return nil // the preflight warns about another owner
	}
	return os.Chmod(dir, st.Mode().Perm()&^others)
}

func unwritable(dir string, err error) error {
	if err == nil {
		return nil
	}
	return errdefs.Preflight("write to data dir %s: %w", dir, err).
		Hint("# free some space in " + hostinfo.Quote(dir) + " and make it writable for the account, or choose another dataDir\ndf -h " + hostinfo.Quote(dir))
}

// writeRecord writes the record atomically. It replaces was and keeps its unknown fields. If was is nil, it returns fs.ErrExist if there
// is a record already.
func writeRecord(d layout.Data, r Record, was *Record) error {
	fields := map[string]json.RawMessage{}
	if was != nil {
		b, _, err := readRegular(d.Record())
		if err != nil {
			return err
		}
		if err := json.Unmarshal(b, &fields); err != nil {
			return fmt.Errorf("decode %s: %w", d.Record(), err)
		}
	}
	known, err := json.Marshal(r)
	if err != nil {
		return err
	}
	var own map[string]json.RawMessage
	if err := json.Unmarshal(known, &own); err != nil {
		return err
	}
	maps.Copy(fields, own)
	b, err := json.MarshalIndent(fields, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Options{Durable: true, New: was == nil}.Write(d.Record(), append(b, '\n'), 0o600)
}

// IDsError returns the error for data that was created with other ids, of class errdefs.ErrPreflight. Its hint has the commands with which
// root restores the former ids.
func IDsError(d layout.Data, name, account string, changes []IDChange) error {
	err := fmt.Errorf("the data of node %q in %s was created with other ids: %s", name, d.Dir, ChangesText(changes))
	return errdefs.WithHint(errdefs.Class(errdefs.ErrPreflight, err), "# as root:\n"+strings.Join(Restore(changes, account), "\n"))
}
