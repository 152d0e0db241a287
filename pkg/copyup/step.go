package copyup

import (
	"fmt"
	"io/fs"
	"os"
)

// View is the little that Plan has to know of the copied-up directories as they stand. Paths are absolute; links in the
// middle of a path are followed as the kernel does.
type View interface {
	// Original returns the name, directly below a copied-up directory, at which its original is bound.
	Original(root string) (string, error)
	// Lstat describes one path. A missing one is fs.ErrNotExist.
	Lstat(name string) (Entry, error)
	// ReadDir lists the directory to which name leads.
	ReadDir(name string) ([]Entry, error)
}

// Entry is one name in a directory.
type Entry struct {
	// Name is its last path element.
	Name string
	// Mode is its type and, from Lstat, its permission bits.
	Mode fs.FileMode
	// Link is the text of a link.
	Link string
	// Mounted is true, from Lstat only, where a mount begins.
	Mounted bool
}

func (e Entry) isLink() bool { return e.Mode&fs.ModeSymlink != 0 }

// Op is what a Step does.
type Op int

// The operations, none of which follows a link.
const (
	// OpChmod sets the mode of a directory.
	OpChmod Op = iota + 1
	// OpRemove removes a link, or a file, from the tmpfs.
	OpRemove
	// OpMakeDir makes a directory and gives it its mode.
	OpMakeDir
	// OpLink makes a link with the text Link.
	OpLink
	// OpBind binds the source of Spec.Binds[Bind] over a directory.
	OpBind
)

// Step is one change below a copied-up directory.
type Step struct {
	Op Op
	// Root is the copied-up directory to which Path belongs.
	Root string
	// Path is the absolute path of what changes. No element of it below Root is a link when the step's turn comes.
	Path string
	// Link is the text of the link to make.
	Link string
	// Bind is the index in Spec.Binds of what is bound.
	Bind int
	// Mode is the mode to set.
	Mode os.FileMode
	// Bound is true when Path lies in a directory that an earlier step bound, and not on the tmpfs. An OpMakeDir there
	// accepts a directory that exists, and leaves its mode.
	Bound bool
}

// String describes the step for a log.
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
