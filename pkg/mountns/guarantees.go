package mountns

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
)

// Guarantees are the properties of a mount namespace for Kubernetes. They are independent of each other.
type Guarantees struct {
	// HostToInside (1): mounts of the host are visible to the runtime, the kubelet and HostToContainer volumes.
	HostToInside bool `json:"hostToInside"`
	// Inside (2): mounts of the runtime, the kubelet and Bidirectional volumes are visible to each other and to
	// HostToContainer volumes.
	Inside bool `json:"inside"`
	// InsideToHost (3): those mounts are visible on the host too.
	InsideToHost bool `json:"insideToHost"`
}

// and returns the guarantees that are in both g and o.
func (g Guarantees) and(o Guarantees) Guarantees {
	return Guarantees{g.HostToInside && o.HostToInside, g.Inside && o.Inside, g.InsideToHost && o.InsideToHost}
}

// peers are the propagation groups of a mount, 0 if it has none (proc_pid_mountinfo(5)).
type peers struct{ shared, master int }

func peersOf(optional string) (p peers) {
	for field := range strings.FieldsSeq(optional) {
		tag, value, _ := strings.Cut(field, ":")
		switch tag {
		case "shared":
			_, _ = fmt.Sscan(value, &p.shared) // the kernel writes a number
		case "master":
			_, _ = fmt.Sscan(value, &p.master)
		}
	}
	return p
}

// relation contains the propagation groups of the mount of one path on the host and inside.
type relation struct {
	mountpoint   string
	host, inside peers
}

func (r relation) guarantees() Guarantees {
	peer := r.host.shared != 0 && r.host.shared == r.inside.shared
	return Guarantees{
		HostToInside: peer || r.host.shared != 0 && r.host.shared == r.inside.master,
		Inside:       r.inside.shared != 0,
		InsideToHost: peer,
	}
}

// propagation returns the propagation mode of r. If the host's mount is private, Slave cannot be distinguished from Private.
func (r relation) propagation() Propagation {
	switch g := r.guarantees(); {
	case g.InsideToHost:
		return Shared
	case g.HostToInside:
		return Slave
	}
	return Private
}

// matches reports whether r is the result of creating the namespace with want.
func (r relation) matches(want Propagation) bool {
	got := r.propagation()
	return got == want || want == Slave && got == Private && r.host.shared == 0
}

// relate compares the mounts of s.paths on the host and inside, each mount once. That of the root is the first.
func (s *Store) relate(host, inside []*mountinfo.Info) []relation {
	var all []relation
	for _, path := range append([]string{"/"}, s.paths...) {
		for ; ; path = filepath.Dir(path) {
			if real, err := filepath.EvalSymlinks(path); err == nil {
				path = real
				break
			}
		}
		h, i := hostinfo.MountOver(host, path), hostinfo.MountOver(inside, path)
		if h == nil || i == nil {
			continue
		}
		r := relation{h.Mountpoint, peersOf(h.Optional), peersOf(i.Optional)}
		if !slices.Contains(all, r) {
			all = append(all, r)
		}
	}
	return all
}

// relations compares the mounts of the namespace ns with the host's. The result contains at least that of the root.
func (s *Store) relations(ns *os.File) ([]relation, error) {
	host, inside, err := mountsIn(ns)
	if err != nil {
		return nil, err
	}
	all := s.relate(host, inside)
	if len(all) == 0 {
		return nil, errors.New("it has no mount in common with the host")
	}
	return all, nil
}

// mountsIn returns the mounts of the host and of the namespace ns.
func mountsIn(ns *os.File) (host, inside []*mountinfo.Info, err error) {
	if host, err = mountinfo.GetMounts(nil); err != nil {
		return nil, nil, fmt.Errorf("read the host's mounts: %w", err)
	}
	err = in(ns, func() error {
		f, err := os.Open(threadSelf + "/mountinfo")
		if err != nil {
			return err
		}
		defer f.Close()
		inside, err = mountinfo.GetMountsFromReader(f, nil)
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("read the mounts inside: %w", err)
	}
	return host, inside, nil
}

// derive returns the guarantees that follow from the propagation of the mounts, and the reasons why the others do not hold.
func derive(relations []relation) (Guarantees, []string) {
	sum := Guarantees{true, true, true}
	var reasons []string
	root := relations[0].propagation()
	for _, r := range relations {
		g := r.guarantees()
		sum = sum.and(g)
		switch {
		case r.host.shared == 0 && root != Private || r.host.shared == 0 && r.mountpoint == "/":
			reasons = append(reasons, fmt.Sprintf("1: the host's mount of %s is private: run mount --make-shared %s, then create the namespace again", r.mountpoint, r.mountpoint))
		case !g.HostToInside && r.mountpoint == "/":
			reasons = append(reasons, "1: the namespace does not receive the host's mounts (propagation private)")
		case !g.HostToInside && root != Private:
			reasons = append(reasons, fmt.Sprintf("1: the mount of %s inside does not receive mounts from the host's", r.mountpoint))
		}
		switch {
		case !g.Inside:
			reasons = append(reasons, fmt.Sprintf("2: the mount of %s inside is private: run mount --make-shared %s inside", r.mountpoint, r.mountpoint))
		case root == Shared && !g.InsideToHost:
			reasons = append(reasons, fmt.Sprintf("3: the mount of %s inside is not a peer of the host's", r.mountpoint))
		}
	}
	return sum, reasons
}

// probe tests the propagation with mounts in a directory.
type probe struct{ dir string }

// point creates a mount point.
func (p probe) point(name string) (string, error) {
	path := filepath.Join(p.dir, name)
	return path, os.Mkdir(path, 0o700)
}

// Mounted reports whether the calling thread sees a mount on path, that is, whether path is on another file system than its
// parent directory.
func Mounted(path string) (bool, error) {
	var above, here unix.Stat_t
	if err := unix.Stat(filepath.Dir(path), &above); err != nil {
		return false, fmt.Errorf("stat %s: %w", filepath.Dir(path), err)
	}
	if err := unix.Stat(path, &here); err != nil {
		return false, fmt.Errorf("stat %s: %w", path, err)
	}
	return above.Dev != here.Dev, nil
}

// visible mounts a tmpfs on a new directory in from, and reports for each observer whether the mount is visible.
func (p probe) visible(name string, from view, observers ...view) (seen []bool, err error) {
	path, err := p.point(name)
	if err != nil {
		return nil, err
	}
	err = from.do(func() error { return unix.Mount("none", path, "tmpfs", 0, "size=4k") })
	if err != nil {
		return nil, privilege(fmt.Errorf("mount a tmpfs on %s: %w", path, err))
	}
	defer func() {
		if umountErr := from.do(func() error { return unix.Unmount(path, unix.MNT_DETACH) }); err == nil && umountErr != nil {
			err = fmt.Errorf("unmount %s: %w", path, umountErr)
		}
	}()
	for _, observer := range observers {
		var yes bool
		err := observer.do(func() (err error) { yes, err = Mounted(path); return err })
		if err != nil {
			return nil, err
		}
		seen = append(seen, yes)
	}
	return seen, nil
}

// view runs a function in a mount namespace.
type view interface{ do(fn func() error) error }

// hostView is the view of the process itself.
type hostView struct{}

func (hostView) do(fn func() error) error { return fn() }

// joinVolume starts a thread that sees the mounts of the namespace as a container does: with flag MS_SLAVE through a
// HostToContainer volume, with 0 through a Bidirectional one.
func joinVolume(ns *os.File, flag uintptr) (*thread, error) {
	t, err := startThread(func() error {
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
			return err
		}
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return err
		}
		if flag == 0 {
			return nil
		}
		return unix.Mount("none", "/", "", unix.MS_REC|flag, "")
	})
	if err != nil {
		return nil, privilege(fmt.Errorf("enter the mount namespace as a volume does: %w", err))
	}
	return t, nil
}

// volumes are threads that see the mounts of a namespace as containers do: slave through a HostToContainer volume, peer
// through a Bidirectional one.
type volumes struct{ slave, peer *thread }

func joinVolumes(ns *os.File) (v volumes, err error) {
	if v.slave, err = joinVolume(ns, unix.MS_SLAVE); err != nil {
		return v, err
	}
	if v.peer, err = joinVolume(ns, 0); err != nil {
		v.slave.stop()
	}
	return v, err
}

func (v volumes) stop() {
	v.slave.stop()
	v.peer.stop()
}

// probe determines the guarantees with test mounts: it mounts an empty tmpfs in each view and checks whether it is visible in
// the others, in a new directory next to the pins. It removes all of it.
func (s *Store) probe(ns *os.File) (g Guarantees, err error) {
	dir, err := os.MkdirTemp(filepath.Dir(s.dir), "mountns-probe-")
	if err != nil {
		return g, privilege(err)
	}
	defer func() { err = firstError(err, os.RemoveAll(dir)) }()
	p := probe{dir}
	inside, err := joinThread(ns)
	if err != nil {
		return g, err
	}
	defer inside.stop()
	v, err := joinVolumes(ns)
	if err != nil {
		return g, err
	}
	defer v.stop()
	return p.run(inside, v)
}

func (p probe) run(inside view, v volumes) (g Guarantees, err error) {
	fromHost, err := p.visible("host", hostView{}, inside, v.slave)
	if err != nil {
		return g, err
	}
	fromInside, err := p.visible("inside", inside, v.slave, v.peer, hostView{})
	if err != nil {
		return g, err
	}
	fromVolume, err := p.visible("volume", v.peer, inside, v.slave)
	if err != nil {
		return g, err
	}
	return Guarantees{
		HostToInside: fromHost[0] && fromHost[1],
		Inside:       fromInside[0] && fromInside[1] && fromVolume[0] && fromVolume[1],
		InsideToHost: fromInside[2],
	}, nil
}

func firstError(a, b error) error {
	if a != nil {
		return a
	}
	return b
}
