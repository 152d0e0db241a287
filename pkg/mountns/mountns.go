// Package mountns keeps a mount namespace for the kubelet and the container runtime of a rootful node: host mounts come
// in, what the runtime, the kubelet and their pods mount is shared inside, and the host sees none of it unless asked.
//
// The namespace is held by a pin, a bind mount of its file in /proc (mount_namespaces(7)) in a directory that is a
// private mount, for the kernel refuses to pin a mount namespace where it could propagate. Programs enter by Exec, which
// takes the place of the calling process. All state is in the kernel and in the pins: nothing runs in between.
//
// Runs in: the host's mount namespace, as root of the user namespace that owns it; Exec also inside. The package starts
// no process, changes no propagation of the host's mounts other than its own directory's, and never enters a namespace
// with the calling thread, except in Exec.
package mountns

import (
	"errors"
	"fmt"
	"path/filepath"
	"regexp"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

// DefaultName is the namespace of a host that has but one.
const DefaultName = "kubens"

// EnvPin is the environment variable by which CRI-O and others are told a pin's path. They enter by themselves.
const EnvPin = "KUBENSMNT"

// Propagation says how the mounts of the namespace hang together with the host's. Inside they are always shared.
type Propagation string

// Ways of propagation.
const (
	// Slave: host mounts come in, nothing goes out. The default.
	Slave Propagation = "slave"
	// Shared: both ways; the host sees everything.
	Shared Propagation = "shared"
	// Private: neither way. What the host mounts later is not seen inside, and what it unmounts stays busy.
	Private Propagation = "private"
)

var (
	// ErrNotFound: there is no namespace of that name. Exit code 1.
	ErrNotFound = errors.New("mount namespace does not exist")
	// ErrInUse: processes live in the namespace. Exit code 1.
	ErrInUse = errors.New("mount namespace is in use")
)

// Options place the pins. The zero value is the host's own.
type Options struct {
	// Dir holds the pins, each with the name of its namespace. Its parent must lie on a mount that propagates like the
	// host's others; Dir itself becomes a private mount. Empty: layout.MountNSDir.
	Dir string
	// Paths are those whose mounts must propagate for the guarantees to hold. Missing ones count by their parents.
	// nil: the root, /run, and the directories of kubelet, containerd and CRI-O.
	Paths []string
}

// Store is the set of the namespaces pinned in one directory. Its methods may be called from several goroutines and
// processes: those that change something take turns.
type Store struct {
	dir   string
	paths []string
}

// New returns the namespaces pinned in o.Dir. It touches nothing.
func New(o Options) *Store {
	s := &Store{dir: o.Dir, paths: o.Paths}
	if s.dir == "" {
		s.dir = layout.MountNSDir
	}
	if s.paths == nil {
		s.paths = []string{"/", "/run", layout.InsideKubelet, layout.InsideContainerdRoot, "/var/lib/containers"}
	}
	return s
}

// Pin is the path of a namespace's pin, there or not: what EnvPin holds.
func (s *Store) Pin(name string) string { return filepath.Join(s.dir, name) }

// Names are file names, and parts of a systemd unit's name.
var nameForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)

// CheckName tells whether name can be that of a namespace. The error is of class errdefs.ErrConfig.
func CheckName(name string) error {
	if nameForm.MatchString(name) {
		return nil
	}
	return errdefs.WithHint(errdefs.Class(errdefs.ErrConfig, fmt.Errorf("name of a mount namespace: %q cannot be used", name)),
		"1 to 32 of a-z, 0-9 and -, neither beginning nor ending with -")
}

// ParsePropagation reads a way of propagation; empty is Slave. The error is of class errdefs.ErrConfig.
func ParsePropagation(text string) (Propagation, error) {
	switch p := Propagation(text); p {
	case "":
		return Slave, nil
	case Slave, Shared, Private:
		return p, nil
	}
	return "", errdefs.WithHint(errdefs.Class(errdefs.ErrConfig, fmt.Errorf("propagation %q is not known", text)),
		string(Slave)+", "+string(Shared)+" or "+string(Private))
}

// privilege gives the kernel's refusal its class and way out.
func privilege(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return errdefs.WithHint(errdefs.Class(errdefs.ErrPreflight, err), "run it as root of the host (CAP_SYS_ADMIN)")
	}
	return err
}

func notFound(name string) error {
	return errdefs.WithHint(fmt.Errorf("%w: %s", ErrNotFound, name), "rootlessnode mountns create --name "+name)
}
