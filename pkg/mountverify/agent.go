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

	"github.com/rootlessnode/rootlessnode/internal/userns"
	"github.com/rootlessnode/rootlessnode/pkg/mountns"
)

// Parties of a trial: each mounts at a place of its own name, and looks at all the places.
const (
	None            = "none"
	HostToContainer = "host-to-container"
	Bidirectional   = "bidirectional"
	Node            = "node" // where the kubelet is
	Host            = "host"
)

// Parties lists them in the order of the matrix.
func Parties() []string { return []string{Host, Node, Bidirectional, HostToContainer, None} }

// Marks that the parties leave for one another: empty files MARK-PARTY, in a directory that no mount of the trial covers.
const (
	markHere    = "here"
	markMounted = "mounted" // it says why there is no mount, if there is none
	markLooked  = "looked"
	markGone    = "gone"
)

// callerHosts, in the node's mark that it is here, tells the caller of Run to play the host.
const callerHosts = "the caller is the host"

const (
	stateDir  = "state"
	placesDir = "places"
	tokenFile = "token"
	dirMode   = 0o755
	askEvery  = 20 * time.Millisecond
)

// AgentOptions say what an agent does. All are required but CallerMounts.
type AgentOptions struct {
	// Party is whose part it plays: one of the pods' or Node.
	Party string
	// Volume is the directory of the trial as this process sees it, Dir as the node does.
	Volume, Dir string
	// CallerMounts: the caller of Run mounts as the host, if it is on the same machine.
	CallerMounts bool
}

// Result is what one party saw.
type Result struct {
	Party string `json:"party"`
	// Sees says of each party's mount whether it is seen.
	Sees map[string]bool `json:"sees,omitempty"`
	// Fault is why this party did not mount.
	Fault string `json:"fault,omitempty"`
	// Of Node alone: UserNS is a rootless node's, Local tells that the caller of Run is on the same machine, Daemon that a
	// process named kubelet was found, else process 1 took its place. Propagation is that of the mount of Dir there.
	UserNS      bool   `json:"userns,omitempty"`
	Local       bool   `json:"local,omitempty"`
	Daemon      bool   `json:"daemon,omitempty"`
	Propagation string `json:"propagation,omitempty"`
	// Host is what process 1 of the machine sees, on behalf of a caller that is elsewhere.
	Host *Result `json:"host,omitempty"`
}

// RunAgent plays a party's part to its end and returns what it saw; nothing of its own stays mounted. It is run in a
// container of the trial, and as process of the host by Run. Node needs the node's pid namespace.
//
// Runs in: either, in a process whose children have no parent death signal.
func RunAgent(ctx context.Context, o AgentOptions) (Result, error) {
	a := &agent{o: o, dir: o.Volume, views: map[string]view{
		o.Party: {base: o.Volume, mounts: o.Party != Host || o.CallerMounts},
	}}
	r := Result{Party: o.Party}
	for _, d := range []string{stateDir, placesDir} {
		for _, p := range Parties() {
			if err := os.MkdirAll(a.path(d, p), dirMode); err != nil { // state/PARTY keeps one party's marks
				return r, err
			}
		}
	}
	if o.Party == Node {
		if err := a.prepareNode(&r); err != nil {
			return r, err
		}
	}
	err := a.play(ctx, &r)
	if o.Party == Node && !r.Local {
		err = errors.Join(err, a.views[Node].do(func() error { return os.RemoveAll(o.Dir) }))
	}
	return r, err
}

// view is from where a party looks.
type view struct {
	ns, base string
	mounts   bool
	absent   bool // nobody can look from there
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
	views map[string]view // of the parties that this process plays
	hosts bool            // somebody else plays the host
}

func (a *agent) path(parts ...string) string {
	return filepath.Join(append([]string{a.dir}, parts...)...)
}

// prepareNode finds out where the kubelet is, and whether this process has to play the host too.
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
		return fmt.Errorf("look from where the kubelet is: %w", err)
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

func (a *agent) play(ctx context.Context, r *Result) (err error) {
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
		if err := a.leave(markMounted, party, fault); err != nil {
			return err
		}
		a.result(r, party).Fault = fault
	}
	if err := a.await(ctx, markMounted, others); err != nil {
		return err
	}
	for party, v := range a.views {
		sees, err := v.look()
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

// others are the parties that other processes play. Whoever does not play the host cannot know whether anybody does: the
// node's agent does, and leaves the host's marks where nobody does.
func (a *agent) others() []string {
	var all []string
	for _, p := range Parties() {
		if _, own := a.views[p]; !own && (p != Host || a.o.Party != Node || a.hosts) {
			all = append(all, p)
		}
	}
	return all
}

// mark leaves a mark for every party that this process plays, and for an absent host.
func (a *agent) mark(kind, text string) error {
	var errs []error
	for p := range a.views {
		errs = append(errs, a.leave(kind, p, text))
	}
	return errors.Join(errs...)
}

// leave makes a mark appear whole.
func (a *agent) leave(kind, party, text string) error {
	name := a.path(stateDir, party, kind)
	if err := os.WriteFile(name+".new", []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

// await waits for the marks of others.
func (a *agent) await(ctx context.Context, kind string, others []string) error {
	tick := time.NewTicker(askEvery)
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
			return fmt.Errorf("wait until %s is %s: %w", missing, kind, ctx.Err())
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
			errs = append(errs, fmt.Errorf("unmount the mount of %s: %w", party, err))
		}
	}
	return errors.Join(errs...)
}

// look says whose mounts are seen.
func (v view) look() (map[string]bool, error) {
	if v.absent {
		return nil, nil
	}
	sees := map[string]bool{}
	return sees, v.do(func() (err error) {
		for _, p := range Parties() {
			if sees[p], err = mountns.Mounted(v.place(p)); err != nil {
				return fmt.Errorf("look at the mount of %s: %w", p, err)
			}
		}
		return nil
	})
}

// Report writes a result, or why there is none, for Run to read.
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
