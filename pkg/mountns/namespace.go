package mountns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/proc"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// Spec is a namespace to create.
type Spec struct {
	Name string
	// Propagation: empty is Slave.
	Propagation Propagation
}

// Namespace is a pinned namespace.
type Namespace struct {
	Name string `json:"name"`
	// Pin is its path on the host.
	Pin string `json:"pin"`
	// ID is the output of readlink /proc/PID/ns/mnt for a process in it. It is empty if nothing is pinned.
	ID string `json:"id,omitempty"`
	// Propagation is that of its root. On a host whose root is private it is always Private.
	Propagation Propagation `json:"propagation,omitempty"`
	// Processes is the number of processes in it.
	Processes int `json:"processes"`
	// Fault describes what is wrong with the pin: it is stale, or several are stacked. Empty means that it is valid.
	Fault string `json:"fault,omitempty"`
}

// Created is the result of Create.
type Created struct {
	Namespace
	// Reused: it existed.
	Reused bool `json:"reused"`
	// Guarantees hold according to both the propagation of the mounts and test mounts. Reasons explains the others.
	Guarantees Guarantees `json:"guarantees"`
	Reasons    []string   `json:"reasons,omitempty"`
}

// Create creates and pins a namespace. If a namespace with the requested propagation is already pinned, it is reused
// unchanged. One with another propagation is an error, because replacing it would separate the kubelet from the runtime. A
// stale file of an interrupted Create is replaced. The guarantees are determined from the propagation of the mounts and
// with test mounts.
//
// On a host whose root is private, Slave gives only guarantee 2, and Reasons contains the cause; Shared returns an error of
// class errdefs.ErrPreflight there.
//
// Runs in: the host's mount namespace, as root.
func (s *Store) Create(spec Spec) (*Created, error) {
	var err error
	if spec.Propagation, err = ParsePropagation(string(spec.Propagation)); err != nil {
		return nil, err
	}
	if err := CheckName(spec.Name); err != nil {
		return nil, err
	}
	c, err := s.create(spec)
	if err != nil {
		return nil, fmt.Errorf("create mount namespace %s: %w", spec.Name, err)
	}
	return c, nil
}

func (s *Store) create(spec Spec) (*Created, error) {
	unlock, err := s.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := s.refuseInside(); err != nil {
		return nil, err
	}
	ns, state, err := s.openPin(spec.Name)
	if err != nil {
		return nil, err
	}
	if state != pinned {
		if ns, err = s.createPinned(spec); err != nil {
			return nil, err
		}
	}
	defer ns.Close()
	c := &Created{Reused: state == pinned}
	if err := s.checkPinned(c, spec, ns); err != nil {
		if c.Reused {
			return nil, err
		}
		return nil, errors.Join(err, s.unpin(spec.Name))
	}
	return c, nil
}

func (s *Store) createPinned(spec Spec) (*os.File, error) {
	if spec.Propagation == Shared {
		if err := hostIsShared(); err != nil {
			return nil, err
		}
	}
	if err := s.ensureDir(); err != nil {
		return nil, err
	}
	ns, err := s.newPinned(spec)
	if err != nil {
		return nil, errors.Join(err, s.removeEmptyDir())
	}
	return ns, nil
}

// newPinned creates and pins a namespace. To prevent loops, the kernel only pins a namespace that is newer than the caller's,
// which it determines by the namespace IDs. Since Linux 6.18 each processor has its own range of IDs, so that a newer
// namespace may have a lower ID; pinning it then fails with EINVAL. A namespace that is created on the same processor as the
// caller's has a higher ID, so this function tries every processor. If the caller's is the kernel's initial namespace, any
// processor works.
// https://github.com/canonical/snapd/pull/17376
func (s *Store) newPinned(spec Spec) (*os.File, error) {
	var refused error
	for _, cpu := range append([]int{anyCPU}, allowedCPUs()...) {
		ns, err := newNamespace(spec.Propagation, cpu)
		if err != nil {
			return nil, err
		}
		if refused = s.pin(spec.Name, ns); refused == nil {
			return ns, nil
		}
		_ = ns.Close()
		if !errors.Is(refused, unix.EINVAL) {
			break
		}
	}
	return nil, refused
}

// checkPinned fills in c. It returns an error if the pinned namespace does not match spec.
func (s *Store) checkPinned(c *Created, spec Spec, ns *os.File) error {
	if err := s.checkStacked(spec.Name); err != nil {
		return err
	}
	relations, err := s.relations(ns)
	if err != nil {
		return err
	}
	if c.Namespace, err = s.describe(spec.Name, ns, relations[0].propagation()); err != nil {
		return err
	}
	if !relations[0].matches(spec.Propagation) {
		return errdefs.Errorf("it exists with propagation %s, but %s is requested", c.Propagation, spec.Propagation).
			Do(errdefs.DeleteMounts, spec.Name).Do(errdefs.CreateMounts, spec.Name, "propagation="+string(spec.Propagation))
	}
	c.Guarantees, c.Reasons, err = s.evaluate(relations, ns)
	return err
}

// evaluate returns the guarantees that hold according to both the propagation of the mounts and test mounts.
func (s *Store) evaluate(relations []relation, ns *os.File) (Guarantees, []string, error) {
	derived, reasons := derive(relations)
	probed, err := s.probe(ns)
	if err != nil {
		return Guarantees{}, nil, fmt.Errorf("test the propagation: %w", err)
	}
	for _, v := range []struct {
		number          int
		derived, probed bool
	}{
		{1, derived.HostToInside, probed.HostToInside}, {2, derived.Inside, probed.Inside}, {3, derived.InsideToHost, probed.InsideToHost},
	} {
		if v.derived && !v.probed {
			reasons = append(reasons, fmt.Sprintf("%d: the mounts should propagate, but a test mount in %s is not visible", v.number, filepath.Dir(s.dir)))
		}
	}
	return derived.and(probed), reasons, nil
}

func (s *Store) describe(name string, ns *os.File, p Propagation) (Namespace, error) {
	id, err := idOf(proc.FDPath(ns))
	if err != nil {
		return Namespace{}, err
	}
	procs, err := processesIn(id)
	return Namespace{Name: name, Pin: s.Pin(name), ID: id.String(), Propagation: p, Processes: len(procs)}, err
}

// List returns the namespaces sorted by name, including stale files.
//
// Runs in: the host's mount namespace, as root.
func (s *Store) List() ([]Namespace, error) {
	names, err := s.names()
	if err != nil {
		return nil, fmt.Errorf("list mount namespaces: %w", err)
	}
	all := []Namespace{}
	for _, name := range names {
		n, err := s.inspect(name)
		if errors.Is(err, ErrNotFound) {
			continue // deleted meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("list mount namespaces: %s: %w", name, err)
		}
		all = append(all, n)
	}
	return all, nil
}

func (s *Store) inspect(name string) (Namespace, error) {
	ns, state, err := s.openPin(name)
	if err != nil {
		return Namespace{}, err
	}
	n := Namespace{Name: name, Pin: s.Pin(name)}
	switch state {
	case absent:
		return n, notFound(name)
	case stale:
		n.Fault = "nothing is pinned: stale file"
		return n, nil
	case own:
		id, err := ownID()
		n.ID, n.Fault = id.String(), "seen from inside"
		return n, err
	}
	defer ns.Close()
	relations, err := s.relations(ns)
	if err != nil {
		return n, err
	}
	if n, err = s.describe(name, ns, relations[0].propagation()); err != nil {
		return n, err
	}
	if err := s.checkStacked(name); err != nil {
		n.Fault = err.Error()
	}
	return n, nil
}

// Delete removes the pin. The namespace ends with its last process and the last mount that refers to it. If processes are in
// it, Delete returns ErrInUse. With force it removes the pin anyway: these processes stay in the namespace, and processes
// started later are in another one. With the last pin it also removes the directory of pins.
//
// Runs in: the host's mount namespace, as root.
func (s *Store) Delete(name string, force bool) error {
	if err := CheckName(name); err != nil {
		return err
	}
	if err := s.delete(name, force); err != nil {
		return fmt.Errorf("delete mount namespace %s: %w", name, err)
	}
	return nil
}

func (s *Store) delete(name string, force bool) error {
	if _, state, err := s.peek(name); err != nil {
		return err
	} else if state == absent {
		return notFound(name)
	}
	unlock, err := s.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := s.refuseInside(); err != nil {
		return err
	}
	id, state, err := s.peek(name)
	if err != nil {
		return err
	}
	if state == pinned && !force {
		procs, err := processesIn(id)
		if err != nil {
			return err
		}
		if len(procs) > 0 {
			return errdefs.Errorf("%w: %s", ErrInUse, someOf(procs)).Hint("# stop them, or:").Do(errdefs.DeleteMounts, name, "force=true")
		}
	}
	return s.unpin(name)
}

// peek is like openPin but closes the file.
func (s *Store) peek(name string) (ID, pinState, error) {
	ns, state, err := s.openPin(name)
	if err != nil || state != pinned {
		return ID{}, state, err
	}
	defer ns.Close()
	id, err := idOf(proc.FDPath(ns))
	return id, state, err
}
