package mountns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// Spec is a namespace that is wanted.
type Spec struct {
	Name string
	// Propagation: empty is Slave.
	Propagation Propagation
}

// Namespace is a pinned namespace as it is.
type Namespace struct {
	Name string `json:"name"`
	// Pin is its path on the host.
	Pin string `json:"pin"`
	// ID is what readlink says of /proc/PID/ns/mnt of a process in it; empty when nothing is pinned.
	ID string `json:"id,omitempty"`
	// Propagation is that of its root. On a host whose root is private it is Private, whatever was asked for.
	Propagation Propagation `json:"propagation,omitempty"`
	// Processes is how many live in it.
	Processes int `json:"processes"`
	// Fault says what is wrong with the pin: a leftover, or several on one another. Empty: nothing.
	Fault string `json:"fault,omitempty"`
}

// Created is what Create found or made.
type Created struct {
	Namespace
	// Reused: it was there.
	Reused bool `json:"reused"`
	// Guarantees hold both by the mounts' propagation and by trying; Reasons say why others do not.
	Guarantees Guarantees `json:"guarantees"`
	Reasons    []string   `json:"reasons,omitempty"`
}

// Create makes and pins the namespace, unless one is pinned that is as wanted; then that is used, and nothing changes.
// One that is otherwise is an error, for a second one beside it would part the kubelet from the runtime. A leftover of a
// create that was cut short is replaced. What holds is found out by reading and by doing.
//
// On a host whose root is private, Slave gives guarantee 2 alone, and Reasons say so; Shared is an error of class
// errdefs.ErrPreflight there.
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
		if ns, err = s.makeAndPin(spec); err != nil {
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

func (s *Store) makeAndPin(spec Spec) (*os.File, error) {
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

// newPinned makes and pins a namespace. The kernel pins only one that is younger than its caller's, against loops, and
// goes by the namespaces' ids. Since Linux 6.18 each processor hands them out from a supply of its own, so that the
// younger may have the lower id, and gets EINVAL. One made by the processor that made the caller's has the higher id:
// so every processor gets its try. On a host whose namespace is the kernel's first, any will do.
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

// checkPinned fills c in, and fails when what is pinned is not what spec wants.
func (s *Store) checkPinned(c *Created, spec Spec, ns *os.File) error {
	if err := s.stacked(spec.Name); err != nil {
		return err
	}
	relations, err := s.relations(ns)
	if err != nil {
		return err
	}
	if c.Namespace, err = s.describe(spec.Name, ns, relations[0].propagation()); err != nil {
		return err
	}
	if !relations[0].as(spec.Propagation) {
		return errdefs.WithHintf(fmt.Errorf("it is there with propagation %s, %s is asked for", c.Propagation, spec.Propagation),
			"rootlessnode mountns delete --name %s\nrootlessnode mountns create --name %s --propagation %s", spec.Name, spec.Name, spec.Propagation)
	}
	c.Guarantees, c.Reasons, err = s.evaluate(relations, ns)
	return err
}

// evaluate brings reading and doing together.
func (s *Store) evaluate(relations []relation, ns *os.File) (Guarantees, []string, error) {
	byReading, reasons := read(relations)
	byDoing, err := s.try(ns)
	if err != nil {
		return Guarantees{}, nil, fmt.Errorf("try the propagation: %w", err)
	}
	for _, v := range []struct {
		number       int
		reads, tried bool
	}{
		{1, byReading.HostToInside, byDoing.HostToInside}, {2, byReading.Inside, byDoing.Inside}, {3, byReading.InsideToHost, byDoing.InsideToHost},
	} {
		if v.reads && !v.tried {
			reasons = append(reasons, fmt.Sprintf("%d: the mounts' propagation promises it, but a mount in %s did not arrive", v.number, filepath.Dir(s.dir)))
		}
	}
	return byReading.and(byDoing), reasons, nil
}

func (s *Store) describe(name string, ns *os.File, p Propagation) (Namespace, error) {
	id, err := idOf(fdPath(ns))
	if err != nil {
		return Namespace{}, err
	}
	procs, err := processesIn(id)
	return Namespace{Name: name, Pin: s.Pin(name), ID: id.String(), Propagation: p, Processes: len(procs)}, err
}

// List returns the namespaces in the order of their names, leftovers too.
//
// Runs in: the host's mount namespace, as root.
func (s *Store) List() ([]Namespace, error) {
	names, err := s.names()
	if err != nil {
		return nil, fmt.Errorf("list mount namespaces: %w", err)
	}
	all := []Namespace{}
	for _, name := range names {
		n, err := s.look(name)
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

func (s *Store) look(name string) (Namespace, error) {
	ns, state, err := s.openPin(name)
	if err != nil {
		return Namespace{}, err
	}
	n := Namespace{Name: name, Pin: s.Pin(name)}
	switch state {
	case absent:
		return n, notFound(name)
	case stale:
		n.Fault = "nothing is pinned: a leftover"
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
	if err := s.stacked(name); err != nil {
		n.Fault = err.Error()
	}
	return n, nil
}

// Delete takes the pin away. The namespace ends with its last process and the last mount that holds it. While processes
// live in it that is refused with ErrInUse, unless forced: those stay in it then, and what is started later is apart from
// them. With the last pin the directory of pins goes too.
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
			return errdefs.WithHintf(fmt.Errorf("%w: %s", ErrInUse, someOf(procs)), "stop them, or rootlessnode mountns delete --name %s --force", name)
		}
	}
	return s.unpin(name)
}

// peek is openPin without keeping the file.
func (s *Store) peek(name string) (ID, pinState, error) {
	ns, state, err := s.openPin(name)
	if err != nil || state != pinned {
		return ID{}, state, err
	}
	defer ns.Close()
	id, err := idOf(fdPath(ns))
	return id, state, err
}
