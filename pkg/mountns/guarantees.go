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

// Guarantees are what a mount namespace for Kubernetes can promise, each by itself.
type Guarantees struct {
	// HostToInside (1): what the host mounts reaches the runtime, the kubelet and HostToContainer volumes.
	HostToInside bool `json:"hostToInside"`
	// Inside (2): what the runtime, the kubelet and Bidirectional volumes mount is seen by each other and by
	// HostToContainer volumes.
	Inside bool `json:"inside"`
	// InsideToHost (3): the host sees those mounts too.
	InsideToHost bool `json:"insideToHost"`
}

// and is what both hold to be true.
func (g Guarantees) and(o Guarantees) Guarantees {
	return Guarantees{g.HostToInside && o.HostToInside, g.Inside && o.Inside, g.InsideToHost && o.InsideToHost}
}

// peers are the propagation groups of a mount: 0 is none (proc_pid_mountinfo(5)).
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

// relation is how the mount of one path hangs together on both sides.
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

// propagation is how r looks; on a host whose mount is private Slave and Private are the same.
func (r relation) propagation() Propagation {
	switch g := r.guarantees(); {
	case g.InsideToHost:
		return Shared
	case g.HostToInside:
		return Slave
	}
	return Private
}

// as tells whether r is what want would have given.
func (r relation) as(want Propagation) bool {
	got := r.propagation()
	return got == want || want == Slave && got == Private && r.host.shared == 0
}

// relate compares the mounts of s.paths on both sides, each mount once; the root's is the first.
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

// relations compares the mounts of the namespace that ns holds with the host's. There is at least the root's.
func (s *Store) relations(ns *os.File) ([]relation, error) {
	host, inside, err := mountsIn(ns)
	if err != nil {
		return nil, err
	}
	all := s.relate(host, inside)
	if len(all) == 0 {
		return nil, errors.New("no mount of it is known on the host")
	}
	return all, nil
}

// mountsIn reads the mounts of the namespace that ns holds, and the host's.
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

// read says what the propagation of the mounts promises, and for each promise that does not hold why.
func read(relations []relation) (Guarantees, []string) {
	sum := Guarantees{true, true, true}
	var reasons []string
	root := relations[0].propagation()
	for _, r := range relations {
		g := r.guarantees()
		sum = sum.and(g)
		switch {
		case r.host.shared == 0 && root != Private || r.host.shared == 0 && r.mountpoint == "/":
			reasons = append(reasons, fmt.Sprintf("1: the host's mount of %s is private: mount --make-shared %s, and create the namespace anew", r.mountpoint, r.mountpoint))
		case !g.HostToInside && r.mountpoint == "/":
			reasons = append(reasons, "1: the namespace is cut off from the host's mounts (propagation private)")
		case !g.HostToInside && root != Private:
			reasons = append(reasons, fmt.Sprintf("1: the mount of %s inside does not receive from the host's", r.mountpoint))
		}
		switch {
		case !g.Inside:
			reasons = append(reasons, fmt.Sprintf("2: the mount of %s inside is private: mount --make-shared %s, inside", r.mountpoint, r.mountpoint))
		case root == Shared && !g.InsideToHost:
			reasons = append(reasons, fmt.Sprintf("3: the mount of %s inside is no peer of the host's", r.mountpoint))
		}
	}
	return sum, reasons
}

// probe is the directory in which one check by doing is made, and what it looks at.
type probe struct{ dir string }

// point makes a directory to mount on.
func (p probe) point(name string) (string, error) {
	path := filepath.Join(p.dir, name)
	return path, os.Mkdir(path, 0o700)
}

// Mounted tells whether the calling thread sees a mount on path: one that is not of the file system that its directory is on.
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

// on has one view mount something on a fresh directory while the others look.
func (p probe) on(name string, from view, lookers ...view) (seen []bool, err error) {
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
	for _, look := range lookers {
		var yes bool
		err := look.do(func() (err error) { yes, err = Mounted(path); return err })
		if err != nil {
			return nil, err
		}
		seen = append(seen, yes)
	}
	return seen, nil
}

// view runs a function in some mount namespace.
type view interface{ do(fn func() error) error }

// hostView is that of the process itself.
type hostView struct{}

func (hostView) do(fn func() error) error { return fn() }

// joinVolume starts a thread that sees what a container sees of the namespace's mounts: with flag MS_SLAVE as a
// HostToContainer volume, with 0 as a Bidirectional one.
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

// volumes see what containers see of a namespace's mounts: slave through a HostToContainer volume, peer through a
// Bidirectional one.
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

// try finds out the guarantees by doing: it mounts an empty tmpfs on one side and looks on the others, in a fresh
// directory beside the pins. Nothing of it is left.
func (s *Store) try(ns *os.File) (g Guarantees, err error) {
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
	return p.ask(inside, v)
}

func (p probe) ask(inside view, v volumes) (g Guarantees, err error) {
	fromHost, err := p.on("host", hostView{}, inside, v.slave)
	if err != nil {
		return g, err
	}
	fromInside, err := p.on("inside", inside, v.slave, v.peer, hostView{})
	if err != nil {
		return g, err
	}
	fromVolume, err := p.on("volume", v.peer, inside, v.slave)
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
