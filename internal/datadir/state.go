package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// stateFile is a file in the data dir in which the node keeps state for the next run. The record has its own checks.
type stateFile struct {
	path string
	// lost describes the loss if the user removes the file. If it is empty, the file has only information that the node can create again:
	// it replaces a file that is damaged or has another owner.
	lost string
	// isJSON is set if a file that is not JSON is damaged.
	isJSON bool
}

func stateFiles(d layout.Data) []stateFile {
	return []stateFile{
		{path: d.LastExit()}, {path: d.Verified()}, {path: d.ImportedImages()},
		{path: d.Ports(), lost: "Services and pods may get other host ports"},
		{path: d.ManualPorts(), lost: "add the forwards again", isJSON: true},
		{path: d.JoinRecord(), lost: "join again with a token"},
	}
}

// CheckState returns an error of class errdefs.ErrConfig with all state files that this program must not use: those of a newer version, those
// that belong to another account than uid, and damaged ones that the node cannot create again.
func CheckState(d layout.Data, uid int) error {
	var errs []error
	for _, f := range stateFiles(d) {
		errs = append(errs, f.check(uid))
	}
	return errdefs.Class(errdefs.ErrConfig, errors.Join(errs...))
}

func (f stateFile) check(uid int) error {
	st, err := os.Lstat(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	owner := int(st.Sys().(*syscall.Stat_t).Uid)
	switch err = layout.CheckFormat(f.path); {
	case errors.Is(err, errdefs.ErrConfig):
		return err
	case f.lost == "":
		return nil
	case owner != uid:
		return errdefs.Errorf("%s belongs to uid %d, but this account has uid %d", f.path, owner, uid).
			Hintf("# as root:\nchown %d %s", uid, hostinfo.Quote(f.path))
	case err == nil && f.isJSON:
		var v any
		err = layout.ReadJSON(f.path, &v)
	}
	if err != nil {
		return errdefs.WithHint(fmt.Errorf("damaged state file: %w", err), "rm "+hostinfo.Quote(f.path)+"    # then "+f.lost)
	}
	return nil
}
