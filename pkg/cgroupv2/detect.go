package cgroupv2

import (
	"fmt"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/pkg/layout"
)

// Where a delegation comes from.
const (
	// SourceCurrent: the process already sits in a cgroup that is ours (a systemd unit or scope with Delegate=, …).
	SourceCurrent = "current"
	// SourceScope: the systemd user manager will give us a scope; see Claim.
	SourceScope = "scope"
	// SourcePrepared: the directory that `host setup` made and `host enter` put us into.
	SourcePrepared = "prepared"
)

// Delegation is a cgroup given to us, D.
type Delegation struct {
	// Root is D's absolute directory. Empty for SourceScope, until Claim has asked for the scope.
	Root string
	// Source is one of the Source constants.
	Source string
	// Available are D's controllers. For SourceScope: those of the user manager, the most that a scope can get.
	Available []string
	// Missing are the wanted controllers that are not available.
	Missing []string
	// LostAt is the first cgroup, from the mount point down, that lacks the first of Missing that a delegation can bring;
	// the one above it does not hand it on. The mount point itself: no delegation can bring any.
	LostAt string
	// HeldByV1 and Absent are the wanted controllers that no delegation can bring: those that a v1 hierarchy holds, and
	// those that the tree does not have at all.
	HeldByV1, Absent []string
	// Populated are the processes directly in D. Claim moves them aside.
	Populated []int
}

// Detect finds the delegation that this process can use, changing nothing. With none it returns a *NotDelegatedError,
// an errdefs.ErrPreflight whose hint says how to get one.
//
// In this order: our own cgroup, when it is ours (or the one above, when we sit in a leaf that was made to keep it
// empty); the systemd user manager; nothing. One exception: below the user manager an undelegated scope, which every
// graphical terminal has, is ours by owner but gets fewer controllers than a scope of our own, so that is preferred
// when something is missing.
//
// Runs in: parent.
func Detect(h Host, o Options) (Delegation, error) {
	o = o.withDefaults()
	manager := userManagerReachable(o)
	if self, ok := climb(h); ok {
		d, err := describe(h, self)
		if err != nil {
			return Delegation{}, err
		}
		if !manager || len(d.Missing) == 0 || !undelegatedScope(d.Root) {
			return d, nil
		}
	}
	if manager {
		return scopeDelegation(h), nil
	}
	return Delegation{}, notDelegated(h, o)
}

// climb returns the cgroup to use as D, seen from our own: above an existing node's subtree, above an evacuation leaf,
// above the leaf of `host enter`, else our own; the first of these that is ours.
func climb(h Host) (string, bool) {
	var candidates []string
	p := "/"
	for elem := range strings.SplitSeq(strings.Trim(h.Self, "/"), "/") {
		if isSubtreeName(elem) {
			candidates = append(candidates, p)
			break
		}
		p = path.Join(p, elem)
	}
	if base := path.Base(h.Self); base == evacLeaf || base == enterLeaf {
		candidates = append(candidates, path.Dir(h.Self))
	}
	for _, c := range append(candidates, h.Self) {
		if dir := filepath.Join(h.Mount, c); isOurs(dir) {
			return c, true
		}
	}
	return "", false
}

// isSubtreeName tells S from the scope of the same name.
func isSubtreeName(name string) bool {
	return strings.HasPrefix(name, layout.Cgroup("")) && !strings.HasSuffix(name, scopeSuffix)
}

func describe(h Host, self string) (Delegation, error) {
	d := Delegation{Root: filepath.Join(h.Mount, self), Source: SourceCurrent}
	if h.preparedFor(os.Geteuid()) == d.Root {
		d.Source = SourcePrepared
	}
	var err error
	if d.Populated, err = readPids(d.Root); err != nil {
		return Delegation{}, fmt.Errorf("detect delegation: %w", err)
	}
	if err := d.fill(h, d.Root); err != nil {
		return Delegation{}, fmt.Errorf("detect delegation: %w", err)
	}
	return d, nil
}

// fill looks up which controllers dir has, which are missing and where they got lost.
func (d *Delegation) fill(h Host, dir string) (err error) {
	if d.Available, err = readList(dir, controllersFile); err != nil {
		return err
	}
	d.Missing = without(Wanted(), d.Available)
	for _, c := range d.Missing {
		if slices.ContainsFunc(h.V1, func(v1 string) bool { return v2Name(v1) == c }) {
			d.HeldByV1 = append(d.HeldByV1, c)
		}
	}
	if top, err := readList(h.Mount, controllersFile); err == nil {
		d.Absent = without(without(d.Missing, d.HeldByV1), top)
	}
	if lost := append(d.undelegated(), d.Missing...); len(lost) > 0 {
		d.LostAt = lostAt(h.Mount, dir, lost[0])
	}
	return nil
}

// undelegated are the missing controllers that somebody above has and does not hand on.
func (d *Delegation) undelegated() []string { return without(without(d.Missing, d.HeldByV1), d.Absent) }

func lostAt(mount, dir, controller string) string {
	rel, err := filepath.Rel(mount, dir)
	if err != nil {
		return ""
	}
	at := mount
	for _, elem := range append([]string{"."}, strings.Split(rel, "/")...) {
		at = filepath.Join(at, elem)
		if has, err := readList(at, controllersFile); err == nil && !slices.Contains(has, controller) {
			return at
		}
	}
	return ""
}

func without(all, minus []string) []string {
	var out []string
	for _, a := range all {
		if !slices.Contains(minus, a) {
			out = append(out, a)
		}
	}
	return out
}

// undelegatedScope tells a scope of a user manager that was not asked to delegate. systemd marks those that were with an
// extended attribute (systemd.resource-control(5), Delegate=; user.delegate since 251). Services are never left: whoever
// wrote one wants the node in it.
func undelegatedScope(dir string) bool {
	if !strings.HasSuffix(dir, scopeSuffix) || !strings.Contains(dir, "/user@") {
		return false
	}
	buf := make([]byte, 8)
	n, err := unix.Getxattr(dir, "user.delegate", buf)
	return err != nil || string(buf[:n]) != "1"
}

func scopeDelegation(h Host) Delegation {
	d := Delegation{Source: SourceScope}
	if dir := userManagerCgroup(h, os.Geteuid()); dir != "" {
		// Unreadable: nothing is known before the claim.
		_ = d.fill(h, dir)
	}
	return d
}

// userManagerCgroup is where systemd puts user@UID.service (systemd.special(7)).
func userManagerCgroup(h Host, uid int) string {
	id := strconv.Itoa(uid)
	dir := filepath.Join(h.Mount, "user.slice", "user-"+id+".slice", "user@"+id+".service")
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		return ""
	}
	return dir
}

func userRuntimeDir(uid int) string { return "/run/user/" + strconv.Itoa(uid) }

// managerSockets are where a user manager can be asked: its private socket, then the session bus.
func managerSockets(o Options) (private, bus string) {
	return filepath.Join(o.RuntimeDir, "systemd", "private"), filepath.Join(o.RuntimeDir, "bus")
}

// userManagerReachable asks the manager itself, for a bus may run where no manager does.
func userManagerReachable(o Options) bool {
	private, bus := managerSockets(o)
	if answers(private) {
		return true
	}
	// A bus alone can start the manager or belong to one only where systemd is PID 1.
	_, err := os.Stat(o.Booted)
	return err == nil && answers(bus)
}

// answers tells whether somebody listens on a socket of ours.
func answers(socket string) bool {
	st, err := os.Lstat(socket)
	if err != nil || st.Mode().Type() != os.ModeSocket {
		return false
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); !ok || int(sys.Uid) != os.Geteuid() {
		return false
	}
	c, err := net.Dial("unix", socket)
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}
