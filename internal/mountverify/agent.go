package mountverify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/atomicfile"
	"github.com/rootlessnode/rootlessnode/internal/userns"
	"github.com/rootlessnode/rootlessnode/pkg/mountns"
)

// Parties of a test. Each mounts on a directory with its name, and checks the directories of all parties.
const (
	None            = "none"
	HostToContainer = "host-to-container"
	Bidirectional   = "bidirectional"
	Node            = "node" // in the kubelet's mount namespace
	Host            = "host"
)

// Parties returns the parties in the order of the matrix.
func Parties() []string { return []string{Host, Node, Bidirectional, HostToContainer, None} }

// Marks with which the parties synchronize: files PARTY/MARK in a directory that no mount of the test covers.
const (
	markHere    = "here"
	markMounted = "mounted" // contains the error if the party could not mount
	markLooked  = "looked"
	markGone    = "gone"
)

// callerHosts is the content of the node's markHere if the caller of Run must act as the host.
const callerHosts = "the caller is the host"

const (
	stateDir  = "state"
	placesDir = "places"
	tokenFile = "token"
	dirMode   = 0o755
	pollEvery = 20 * time.Millisecond
)

// AgentOptions configures an agent. All options except CallerMounts are required.
type AgentOptions struct {
	// Party is the party that the agent acts as: that of a pod, or Node.
	Party string
	// Volume is the path of the test directory for this process, Dir its path on the node.
	Volume, Dir string
	// CallerMounts: the caller of Run mounts as the host if it is on the same machine.
	CallerMounts bool
}

// Result has the observations of one party.
type Result struct {
	Party string `json:"party"`
	// Sees contains, for the mount of each party, whether it is visible.
	Sees map[string]bool `json:"sees,omitempty"`
	// Fault is the reason why this party did not mount.
	Fault string `json:"fault,omitempty"`
	// The following fields are only set for Node. UserNS: the node is rootless. Local: the caller of Run is on the same
	// machine. Daemon: a process named kubelet was found; otherwise process 1 is used. Propagation is that of the mount of
	// Dir there.
	UserNS      bool   `json:"userns,omitempty"`
	Local       bool   `json:"local,omitempty"`
	Daemon      bool   `json:"daemon,omitempty"`
	Propagation string `json:"propagation,omitempty"`
	// Host is the result for process 1 of the machine, if the caller of Run is on another machine.
	Host *Result `json:"host,omitempty"`
}

// RunAgent runs the agent of a party and returns what it sees. It unmounts its mount. It runs in the containers of the test,
// and Run calls it as the host. Node needs the node's pid namespace.
//
// Runs in: either, in a process whose children have no parent death signal.
func RunAgent(ctx context.Context, o AgentOptions) (Result, error) {
	a := &agent{o: o, dir: o.Volume, views: map[string]view{
		o.Party: {base: o.Volume, mounts: o.Party != Host || o.CallerMounts},
	}}
	r := Result{Party: o.Party}
	for _, d := range []string{stateDir, placesDir} {
		for _, p := range Parties() {
			if err := os.MkdirAll(a.path(d, p), dirMode); err != nil { // state/PARTY contains the marks of a party
				return r, err
			}
		}
	}
	if o.Party == Node {
		if err := a.prepareNode(&r); err != nil {
			return r, err
		}
	}
	err := a.run(ctx, &r)
	if o.Party == Node && !r.Local {
		err = errors.Join(err, a.views[Node].do(func() error { return os.RemoveAll(o.Dir) }))
	}
	return r, err
}

// view is the mount namespace and directory of a party.
type view struct {
	ns, base string
	mounts   bool
	absent   bool // no process can check it
}

func (v view) do(fn func() error) error {
	if v.ns == "" {
		return fn()
	}
	return mountns.Within(v.ns, fn)
}

type agent struct {
	o     AgentOptions
	dir   string
	views map[string]view // the parties that this process acts as
	hosts bool            // another process acts as the host
}

func (a *agent) path(parts ...string) string {
	return filepath.Join(append([]string{a.dir}, parts...)...)
}

// prepareNode finds the kubelet's mount namespace, and determines whether this process has to act as the host too.
func (a *agent) prepareNode(r *Result) error {
	ns, err := mountns.DaemonNamespace("kubelet")
	if err != nil {
		return err
	}
	r.Daemon = ns != ""
	const first = "/proc/1/ns/mnt"
	if ns == "" {
		ns = first
	}
	node := view{ns: ns, base: a.o.Dir, mounts: true}
	a.views[Node] = node
	err = node.do(func() (err error) { _, r.Propagation, err = mountns.MountOf(a.o.Dir); return err })
	if err != nil {
		return fmt.Errorf("read the mounts of the kubelet's namespace: %w", err)
	}
	r.UserNS = userns.Inside()
	_, err = os.Stat(a.path(tokenFile))
	r.Local = err == nil
	switch {
	case r.Local && a.o.CallerMounts, r.Local && r.UserNS:
		a.hosts = true
	case r.UserNS:
		a.views[Host] = view{absent: true}
		r.Host = &Result{Party: Host}
	default:
		a.views[Host] = view{ns: first, base: a.o.Dir, mounts: true}
		r.Host = &Result{Party: Host}
	}
	return nil
}

// run mounts for all parties of this process, checks all mounts, and synchronizes with the other parties.
func (a *agent) run(ctx context.Context, r *Result) (err error) {
	others := a.others()
	defer func() { err = errors.Join(err, a.mark(markGone, "")) }()
	text := ""
	if a.hosts {
		text = callerHosts
	}
	if err := a.mark(markHere, text); err != nil {
		return err
	}
	if err := a.await(ctx, markHere, others); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, a.unmount()) }()
	for party, v := range a.views {
		fault := ""
		if v.mounts {
			if err := v.mount(party); err != nil {
				fault = err.Error()
			}
		} else {
			fault = "not tried"
		}
		if err := a.writeMark(markMounted, party, fault); err != nil {
			return err
		}
		a.result(r, party).Fault = fault
	}
	if err := a.await(ctx, markMounted, others); err != nil {
		return err
	}
	for party, v := range a.views {
		sees, err := v.check()
		if err != nil {
			return err
		}
		a.result(r, party).Sees = sees
	}
	if err := a.mark(markLooked, ""); err != nil {
		return err
	}
	return a.await(ctx, markLooked, others)
}

func (a *agent) result(r *Result, party string) *Result {
	if party == Host && r.Host != nil {
		return r.Host
	}
	return r
}

// others returns the parties of other processes. Other agents always expect a host. If there is none, the node's agent writes
// the marks of the host.
func (a *agent) others() []string {
	var all []string
	for _, p := range Parties() {
		if _, own := a.views[p]; !own && (p != Host || a.o.Party != Node || a.hosts) {
			all = append(all, p)
		}
	}
	return all
}

// mark writes a mark for every party of this process, and for an absent host.
func (a *agent) mark(kind, text string) error {
	var errs []error
	for p := range a.views {
		errs = append(errs, a.writeMark(kind, p, text))
	}
	return errors.Join(errs...)
}

func (a *agent) writeMark(kind, party, text string) error {
	return atomicfile.Write(a.path(stateDir, party, kind), []byte(text), 0o644)
}

// await waits for the marks of other parties.
func (a *agent) await(ctx context.Context, kind string, others []string) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		missing := ""
		for _, p := range others {
			_, gone := os.Stat(a.path(stateDir, p, markGone))
			_, err := os.Stat(a.path(stateDir, p, kind))
			switch {
			case err == nil:
			case !errors.Is(err, fs.ErrNotExist):
				return err
			case gone == nil:
				return fmt.Errorf("%s ended early", p)
			default:
				missing = p
			}
		}
		if missing == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for mark %q of %s: %w", kind, missing, ctx.Err())
		case <-tick.C:
		}
	}
}

func (v view) place(party string) string { return filepath.Join(v.base, placesDir, party) }

func (v view) mount(party string) error {
	return v.do(func() error {
		if err := unix.Mount("none", v.place(party), "tmpfs", 0, "size=4k"); err != nil {
			return fmt.Errorf("mount a tmpfs: %w", err)
		}
		return nil
	})
}

func (a *agent) unmount() error {
	var errs []error
	for party, v := range a.views {
		if !v.mounts {
			continue
		}
		err := v.do(func() error { return unix.Unmount(v.place(party), unix.MNT_DETACH) })
		if err != nil && !errors.Is(err, unix.EINVAL) { // nothing is mounted there
			errs = append(errs, fmt.Errorf("unmount the tmpfs of %s: %w", party, err))
		}
	}
	return errors.Join(errs...)
}

// check returns, for each party, whether its mount is visible.
func (v view) check() (map[string]bool, error) {
	if v.absent {
		return nil, nil
	}
	sees := map[string]bool{}
	return sees, v.do(func() (err error) {
		for _, p := range Parties() {
			if sees[p], err = mountns.Mounted(v.place(p)); err != nil {
				return fmt.Errorf("check the mount of %s: %w", p, err)
			}
		}
		return nil
	})
}

// Report writes a result, or the error if there is none, to path. Run reads it.
func Report(path string, r Result, err error) error {
	a := answer{Result: r}
	if err != nil {
		a.Error = err.Error()
	}
	b, err := json.Marshal(a)
	if err != nil {
		return err
	}
	return os.WriteFile(path, b, 0o644)
}

type answer struct {
	Result
	Error string `json:"error,omitempty"`
}
