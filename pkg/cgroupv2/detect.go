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

	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// Sources of a delegation.
const (
	// SourceCurrent: the current cgroup of the process is delegated (for example a systemd unit or scope with Delegate=).
	SourceCurrent = "current"
	// SourceScope: the systemd user manager can create a scope; see Claim.
	SourceScope = "scope"
	// SourcePrepared: the directory that `host setup` created and `host enter` moved the process into.
	SourcePrepared = "prepared"
)

// Delegation is a cgroup that is delegated to the account (D).
type Delegation struct {
	// Root is the absolute directory of D. For SourceScope it is empty until Claim has created the scope.
	Root string
	// Source is one of the Source constants.
	Source string
	// Available lists the controllers of D. For SourceScope, it lists those of the user manager, the maximum for a scope.
	Available []string
	// Missing lists the wanted controllers that are not available.
	Missing []string
	// LostAt is the first cgroup, from the mount point down, that lacks a missing controller because the cgroup above does
	// not delegate it. If no missing controller can be delegated, it is the mount point.
	LostAt string
	// HeldByV1 and Absent list the wanted controllers that cannot be delegated: those that a v1 hierarchy uses, and those
	// that the tree does not have.
	HeldByV1, Absent []string
	// Populated lists the processes directly in D. Claim moves them to the evacuation leaf.
	Populated []int
}

// Detect returns the delegation that this process can use. It changes nothing. If there is none, it returns a
// *NotDelegatedError of class errdefs.ErrPreflight, whose hint says how to get one.
//
// It prefers the cgroup of the process if that is delegated (or the cgroup above, if the process is in a leaf that this
// package created to keep it empty), then the systemd user manager. One exception: an undelegated scope below the user
// manager, such as that of a graphical terminal, belongs to the account but has fewer controllers than a new scope. The
// new scope is preferred if such a scope lacks a wanted controller.
//
// Runs in: parent.
func Detect(h Host, o Options) (Delegation, error) {
	o = o.withDefaults()
	manager := userManagerReachable(o)
	if self, ok := findDelegated(h); ok {
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

// findDelegated returns the cgroup to use as D: the one above the subtree of another node, above an evacuation leaf or
// above the leaf of `host enter`, if the process is in one of these, or else its own cgroup; the first that is delegated.
func findDelegated(h Host) (string, bool) {
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
		if dir := filepath.Join(h.Mount, c); isDelegated(dir) {
			return c, true
		}
	}
	return "", false
}

// isSubtreeName reports whether name is that of a subtree S, and not of the scope of the same name.
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

// fill sets the fields for the controllers of dir: which are available, which are missing and why.
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

// undelegated returns the missing controllers that a cgroup above has and does not delegate.
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

// undelegatedScope reports whether dir is a scope of a user manager without Delegate=. systemd marks delegated ones with an
// extended attribute (systemd.resource-control(5), Delegate=; user.delegate since 251). It returns false for services,
// because the author of a service expects the node to run in it.
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
		// If dir cannot be read, the controllers are unknown until Claim.
		_ = d.fill(h, dir)
	}
	return d
}

// userManagerCgroup returns the directory of user@UID.service (systemd.special(7)), or "" if it does not exist.
func userManagerCgroup(h Host, uid int) string {
	id := strconv.Itoa(uid)
	dir := filepath.Join(h.Mount, "user.slice", "user-"+id+".slice", "user@"+id+".service")
	if st, err := os.Stat(dir); err != nil || !st.IsDir() {
		return ""
	}
	return dir
}

func userRuntimeDir(uid int) string { return "/run/user/" + strconv.Itoa(uid) }

// managerSockets returns the sockets on which a user manager can be reached: its private socket and the session bus.
func managerSockets(o Options) (private, bus string) {
	return filepath.Join(o.RuntimeDir, "systemd", "private"), filepath.Join(o.RuntimeDir, "bus")
}

// userManagerReachable reports whether the user manager can be reached. It tries the manager's own socket first, because a
// session bus may run without a manager.
func userManagerReachable(o Options) bool {
	private, bus := managerSockets(o)
	if isListening(private) {
		return true
	}
	// The bus is sufficient only where systemd is PID 1.
	_, err := os.Stat(o.Booted)
	return err == nil && isListening(bus)
}

// isListening reports whether a process listens on socket and the account owns the socket.
func isListening(socket string) bool {
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
