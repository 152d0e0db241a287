package copyup

import (
	"fmt"
	"io/fs"
	"os"
)

// View is the read access of the planner to the copied-up directories. Paths are absolute. Links in the middle of a path are followed as
// the kernel does.
type View interface {
	// Original returns the name, directly below a copied-up directory, at which its original is bound.
	Original(root string) (string, error)
	// Lstat returns one path. If it does not exist, the error is fs.ErrNotExist.
	Lstat(name string) (Entry, error)
	// ReadDir lists a directory, following links.
	ReadDir(name string) ([]Entry, error)
}

// Entry is one entry of a directory.
type Entry struct {
	// Name is its last path element.
	Name string
	// Mode is its type. Lstat also sets its permission bits.
	Mode fs.FileMode
	// Link is the text of a link.
	Link string
	// Mounted reports whether it is a mount point. Only Lstat sets it.
	Mounted bool
}

func (e Entry) isLink() bool { return e.Mode&fs.ModeSymlink != 0 }

// Op is the operation of a Step.
type Op int

// Operations. None of them follows a link.
const (
	// OpChmod sets the mode of a directory.
	OpChmod Op = iota + 1
	// OpRemove removes a link, or a file, from the tmpfs.
	OpRemove
	// OpMakeDir creates a directory and sets its mode.
	OpMakeDir
	// OpLink creates a link with the text Link.
	OpLink
	// OpBind binds the source of Spec.Binds[Bind] over a directory.
	OpBind
)

// Step is one change below a copied-up directory.
type Step struct {
	Op Op
	// Root is the copied-up directory to which Path belongs.
	Root string
	// Path is the absolute path to change. None of its parents below Root is a link when the step is applied.
	Path string
	// Link is the text of the link to create.
	Link string
	// Bind is an index in Spec.Binds.
	Bind int
	// Mode is the mode to set.
	Mode os.FileMode
	// Bound reports whether Path is in a directory that an earlier step bound, and not on the base. OpMakeDir accepts an
	// existing directory there and does not change its mode.
	Bound bool
}

// String returns a description of the step for the log.
func (s Step) String() string {
	switch s.Op {
	case OpChmod:
		return fmt.Sprintf("chmod %v %s", s.Mode, s.Path)
	case OpRemove:
		return "remove " + s.Path
	case OpMakeDir:
		return fmt.Sprintf("mkdir %v %s", s.Mode, s.Path)
	case OpLink:
		return "link " + s.Path + " to " + s.Link
	case OpBind:
		return fmt.Sprintf("bind %d over %s", s.Bind, s.Path)
	}
	return fmt.Sprintf("unknown operation %d on %s", int(s.Op), s.Path)
}
