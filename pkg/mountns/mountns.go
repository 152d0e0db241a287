// Package mountns manages a mount namespace for the kubelet and the container runtime of a rootful node. Mounts of the host
// propagate into it. Mounts of the runtime, the kubelet and their pods are shared inside, and by default not visible on the
// host.
//
// A pin keeps the namespace alive: a bind mount of its file in /proc (mount_namespaces(7)) in a directory that is a private
// mount, because the kernel refuses to pin a mount namespace where the pin could propagate. Programs enter with Exec, which
// replaces the calling process. All state is in the kernel and in the pins; there is no daemon.
//
// Runs in: the host's mount namespace, as root of the user namespace that owns it; Exec also inside. The package starts
// no process, changes the propagation of no mount of the host except that of its own directory, and never enters a
// namespace with the calling thread, except in Exec.
package mountns

import (
	"errors"
	"regexp"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// DefaultName is the default name of the namespace.
const DefaultName = "kubens"

// EnvPin is the environment variable with the path of a pin that CRI-O and other programs read to enter the namespace.
const EnvPin = "KUBENSMNT"

// Propagation is the mount propagation between the host and the namespace. Inside, mounts are always shared.
type Propagation string

// Propagation modes.
const (
	// Slave: mounts of the host propagate into the namespace, and not the reverse. The default.
	Slave Propagation = "slave"
	// Shared: mounts propagate in both directions.
	Shared Propagation = "shared"
	// Private: mounts do not propagate. Later mounts of the host are not visible inside, and those it unmounts remain busy.
	Private Propagation = "private"
)

var (
	// ErrNotFound: there is no namespace of that name. Exit code 1.
	ErrNotFound = errors.New("mount namespace does not exist")
	// ErrInUse: processes are in the namespace. Exit code 1.
	ErrInUse = errors.New("mount namespace is in use")
)

// Options configures a Store. The zero value is for the host.
type Options struct {
	// Dir contains the pins, each with the name of its namespace. Its parent must be on a mount with the usual propagation
	// of the host; Dir itself becomes a private mount. Empty: layout.MountNSDir.
	Dir string
	// Paths lists the paths whose mounts must propagate for the guarantees to hold. For a missing path, its nearest
	// existing parent is used. nil: the root, /run, and the directories of kubelet, containerd and CRI-O.
	Paths []string
}

// Store is the set of namespaces pinned in one directory. Its methods may be called from several goroutines and processes;
// changes are serialized by a lock.
type Store struct {
	pins
	paths []string
}

// New returns the store of o.Dir. It changes nothing.
func New(o Options) *Store {
	s := &Store{pins: pins{o.Dir}, paths: o.Paths}
	if s.dir == "" {
		s.dir = layout.MountNSDir
	}
	if s.paths == nil {
		s.paths = []string{"/", "/run", layout.InsideKubelet, layout.InsideContainerdRoot, "/var/lib/containers"}
	}
	return s
}

// Pin returns the path of a namespace's pin, for EnvPin, whether or not it exists.
func (s *Store) Pin(name string) string { return s.path(name) }

// nameForm is the form of names. They are used as file names and in the names of systemd units.
var nameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)

// CheckName returns an error of class errdefs.ErrConfig if name is not a valid name of a namespace.
func CheckName(name string) error {
	if nameForm.MatchString(name) {
		return nil
	}
	return errdefs.Config("invalid mount namespace name %q", name).Hint("1 to 32 of a-z, 0-9 and -, neither beginning nor ending with -")
}

// ParsePropagation parses a propagation mode. Empty is Slave. Errors have class errdefs.ErrConfig.
func ParsePropagation(text string) (Propagation, error) {
	switch p := Propagation(text); p {
	case "":
		return Slave, nil
	case Slave, Shared, Private:
		return p, nil
	}
	return "", errdefs.Config("unknown propagation %q", text).Hint(string(Slave) + ", " + string(Shared) + " or " + string(Private))
}

// privilege adds the class errdefs.ErrPreflight and a hint to a permission error.
func privilege(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return errdefs.WithHint(errdefs.Class(errdefs.ErrPreflight, err), "run it as root of the host (CAP_SYS_ADMIN)")
	}
	return err
}

func notFound(name string) error {
	return errdefs.Errorf("%w: %s", ErrNotFound, name).Do(errdefs.CreateMounts, name)
}
