package mountns

import (
	"errors"
	"fmt"

	"github.com/rootlessnode/rootlessnode/internal/proc"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// Status is a namespace with its guarantees and processes.
type Status struct {
	Namespace
	// Guarantees hold according to both the propagation of the mounts and test mounts. Reasons explains the others.
	Guarantees Guarantees `json:"guarantees"`
	Reasons    []string   `json:"reasons,omitempty"`
	// Members are the processes in the namespace.
	Members []Process `json:"members"`
	// Outside are the kubelets and runtimes of this host that are not in it.
	Outside []Process `json:"outside"`
}

// Err returns an error of class errdefs.ErrComponent that lists every kubelet and runtime outside, or nil if there is none.
func (st *Status) Err() error {
	var errs []error
	for _, p := range st.Outside {
		errs = append(errs, fmt.Errorf("%s (pid %d) is not in mount namespace %s but in %s", p.Daemon, p.PID, st.Name, p.Namespace))
	}
	err := errdefs.Class(errdefs.ErrComponent, errors.Join(errs...))
	return errdefs.WithSteps(err, errdefs.Do(errdefs.ConfigureMounts, st.Name, "UNIT").Note("for each service outside").Text("systemctl restart UNIT"))
}

// Status returns the status of a namespace: its guarantees, determined from the propagation of the mounts and with test
// mounts, and its processes. A daemon outside is not an error of Status; see Err.
//
// Runs in: the host's mount and pid namespace, as root.
func (s *Store) Status(name string) (*Status, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	st, err := s.status(name)
	if err != nil {
		return nil, fmt.Errorf("status of mount namespace %s: %w", name, err)
	}
	return st, nil
}

func (s *Store) status(name string) (*Status, error) {
	ns, state, err := s.openPin(name)
	switch {
	case err != nil:
		return nil, err
	case state == absent:
		return nil, notFound(name)
	case state == own:
		return nil, errInside(name)
	case state == stale:
		return nil, errStale(s.Pin(name), name)
	}
	defer ns.Close()
	if err := s.checkStacked(name); err != nil {
		return nil, err
	}
	relations, err := s.relations(ns)
	if err != nil {
		return nil, err
	}
	st := &Status{}
	if st.Guarantees, st.Reasons, err = s.evaluate(relations, ns); err != nil {
		return nil, err
	}
	if st.Namespace, err = s.describe(name, ns, relations[0].propagation()); err != nil {
		return nil, err
	}
	id, err := idOf(proc.FDPath(ns))
	if err != nil {
		return nil, err
	}
	if st.Members, err = processesIn(id); err != nil {
		return nil, err
	}
	st.Processes = len(st.Members)
	st.Outside, err = daemonsOutside(id)
	return st, err
}

func errStale(path, name string) error {
	return errdefs.Errorf("nothing is pinned at %s: the file is stale", path).Do(errdefs.CreateMounts, name)
}

// Find returns nil if a namespace can be entered, ErrNotFound if it does not exist, or an error that describes the fault of
// its pin. Any user may call it.
//
// Runs in: the host's mount namespace or in the named one.
func (s *Store) Find(name string) error {
	ns, err := s.openFor(ExecOptions{Name: name})
	if err == nil && ns != nil {
		err = ns.Close()
	}
	if err != nil {
		return fmt.Errorf("find mount namespace %s: %w", name, err)
	}
	return nil
}
