package preflight

import (
	"context"
	"encoding/binary"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/datadir"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/proc"
	"github.com/rootlessnode/rootlessnode/internal/trial"
	"github.com/rootlessnode/rootlessnode/internal/userns"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
)

// Probes are functions that query the kernel. Tests replace them. A nil field uses the real one.
type Probes struct {
	// Statfs describes the file system and the mount that path is on.
	Statfs func(path string) (FileSystem, error)
	// CloneUserNS creates a user namespace and returns the error.
	CloneUserNS func(ctx context.Context) error
	// Listen binds and releases an address; network is tcp4, tcp6, udp4 or udp6.
	Listen func(network, address string) error
	// MayMapIDs reports whether the program at path runs with the privilege to map uids (newuidmap) or gids (newgidmap).
	MayMapIDs func(path string, gids bool) (bool, error)
	// Routes returns the IPv4 routes of all routing tables.
	Routes func() ([]route, error)
	// Trial tries operations of the start in namespaces.
	Trial func(ctx context.Context, r trial.Request) (trial.Result, error)
	// Inotify creates and closes n inotify instances.
	Inotify func(n int) error
	// Now returns the time of the clock, and BuildTime the time of the commit from which this program was built, if known.
	Now, BuildTime func() time.Time
	// Delegation returns the cgroup that the node would use.
	Delegation func() (cgroupv2.Host, cgroupv2.Delegation, error)
	// PacketRules runs the program nft to load rules in new user and network namespaces, as the node would.
	PacketRules func(ctx context.Context, nft, rules string) error
	// IDs returns the ids that RootlessKit would map now, with the subordinate ids from source, and the account's name.
	IDs func(source string) (datadir.IDs, string, error)
	// InUserNS reports whether this process is in a user namespace other than the initial one.
	InUserNS func() bool
	// RootOnly returns nil if only root can replace the file at path, or else the reason.
	RootOnly func(path string) error
}

// FileSystem is the result of statfs(2).
type FileSystem struct {
	// Type is the magic number of the file system.
	Type int64
	// Flags are the ST_ flags of the mount.
	Flags int64
	// Available is the space available to ordinary users, out of Total, in bytes.
	Available, Total uint64
	// InodesFree is the number of free inodes, out of Inodes. Both are 0 if the file system allocates inodes dynamically.
	InodesFree, Inodes uint64
}

func (p Probes) orReal() Probes {
	if p.Statfs == nil {
		p.Statfs = statfs
	}
	if p.RootOnly == nil {
		p.RootOnly = hostinfo.RootOnly
	}
	if p.CloneUserNS == nil {
		p.CloneUserNS = cloneUserNS
	}
	if p.IDs == nil {
		p.IDs = datadir.CurrentIDs
	}
	if p.Listen == nil {
		p.Listen = listen
	}
	if p.MayMapIDs == nil {
		p.MayMapIDs = mayMapIDs
	}
	if p.Trial == nil {
		p.Trial = trial.Run
	}
	if p.Routes == nil {
		p.Routes = kernelRoutes
	}
	if p.Inotify == nil {
		p.Inotify = inotify
	}
	if p.Now == nil {
		p.Now = time.Now
	}
	if p.BuildTime == nil {
		p.BuildTime = buildTime
	}
	if p.Delegation == nil {
		p.Delegation = delegation
	}
	if p.PacketRules == nil {
		p.PacketRules = packetRules
	}
	if p.InUserNS == nil {
		p.InUserNS = userns.Inside
	}
	return p
}

func statfs(path string) (FileSystem, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return FileSystem{}, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	size := uint64(st.Bsize)
	return FileSystem{
		Type: int64(st.Type), Flags: int64(st.Flags), //nolint:unconvert // the types differ between architectures
		Available: st.Bavail * size, Total: st.Blocks * size, InodesFree: st.Ffree, Inodes: st.Files,
	}, nil
}

// truePrograms returns the possible paths of true(1).
func truePrograms() []string { return []string{"/bin/true", "/usr/bin/true"} }

// cloneUserNS runs true(1) in a new user namespace. It does not map ids, because newuidmap has its own checks.
func cloneUserNS(ctx context.Context) error {
	for _, program := range truePrograms() {
		if _, err := os.Stat(program); err != nil {
			continue
		}
		cmd := exec.CommandContext(ctx, program)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}
		return cmd.Run()
	}
	return nil // no program for the test: the start reports the error, if any
}

// packetRules maps this account to root in the namespaces, which needs no privilege (user_namespaces(7)). The error is the
// first line of nft's output.
func packetRules(ctx context.Context, nft, rules string) error {
	ctx, cancel := context.WithTimeout(ctx, programTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, nft, "-f", "-")
	cmd.Stdin, cmd.WaitDelay = strings.NewReader(rules), programTimeout
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}},
	}
	out, err := cmd.CombinedOutput()
	text, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	if _, after, ok := strings.Cut(text, "Error: "); ok { // the part before it is the position in rules
		text = after
	}
	return proc.Failure(err, []byte(text))
}

func listen(network, address string) error {
	if network == "udp4" || network == "udp6" {
		c, err := net.ListenPacket(network, address)
		if err != nil {
			return err
		}
		return c.Close()
	}
	l, err := net.Listen(network, address)
	if err != nil {
		return err
	}
	return l.Close()
}

// mayMapIDs reports whether the program is set-uid root or has the file capability (capabilities(7)), which is stored as
// struct vfs_cap_data of linux/capability.h. Distributions use one of the two.
func mayMapIDs(path string, gids bool) (bool, error) {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return false, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_ISUID != 0 && st.Uid == 0 {
		return true, nil
	}
	buf := make([]byte, 64)
	n, err := unix.Getxattr(path, "security.capability", buf)
	if err != nil || n < 8 {
		return false, nil // no such attribute, or a file system without attributes
	}
	capability := unix.CAP_SETUID
	if gids {
		capability = unix.CAP_SETGID
	}
	return binary.LittleEndian.Uint32(buf[4:8])&(1<<capability) != 0, nil
}

func inotify(n int) error {
	for range n {
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
		if err != nil {
			return os.NewSyscallError("inotify_init1", err)
		}
		defer func() { _ = unix.Close(fd) }() // fails only for an invalid descriptor
	}
	return nil
}

func delegation() (cgroupv2.Host, cgroupv2.Delegation, error) {
	h, err := cgroupv2.DetectHost(cgroupv2.Options{})
	if err != nil {
		return cgroupv2.Host{}, cgroupv2.Delegation{}, err
	}
	d, err := cgroupv2.Detect(h, cgroupv2.Options{})
	return h, d, err
}
