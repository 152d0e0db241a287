package preflight

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/userns"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
	"github.com/rootlessnode/rootlessnode/pkg/datadir"
)

// Probes are the questions that only the kernel can answer. A nil field asks it.
type Probes struct {
	// Statfs describes the file system and the mount that path is on.
	Statfs func(path string) (FileSystem, error)
	// CloneUserNS tries to make a user namespace.
	CloneUserNS func(ctx context.Context) error
	// Listen binds and releases an address; network is tcp4, tcp6, udp4 or udp6.
	Listen func(network, address string) error
	// MayMapIDs tells whether the program at path runs with the privilege to map uids (newuidmap) or gids (newgidmap).
	MayMapIDs func(path string, gids bool) (bool, error)
	// MapIDs has the program at path, newuidmap or newgidmap, map ids into a user namespace that is made for it.
	MapIDs func(ctx context.Context, path string, ids ...string) error
	// Delegation finds the cgroup that the node would use.
	Delegation func() (cgroupv2.Host, cgroupv2.Delegation, error)
	// PacketRules has the program nft make rules in a user and network namespace of its own, as the node would.
	PacketRules func(ctx context.Context, nft, rules string) error
	// IDs returns the ids that RootlessKit would map now, with the subordinate ids from source, and the account's name.
	IDs func(source string) (datadir.IDs, string, error)
	// InUserNS tells whether this process is in a user namespace other than the initial one.
	InUserNS func() bool
	// RootOnly says why others than root can replace the file at path.
	RootOnly func(path string) error
}

// FileSystem is what statfs(2) tells.
type FileSystem struct {
	// Type is the magic number of the file system.
	Type int64
	// Flags are the ST_ flags of the mount.
	Flags int64
	// Available is what an ordinary user may still write, in bytes of Total.
	Available, Total uint64
	// InodesFree of Inodes; both 0 where the file system makes them as needed.
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
	if p.MapIDs == nil {
		p.MapIDs = mapIDs
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
		Type: int64(st.Type), Flags: int64(st.Flags), //nolint:unconvert // their types are other ones on other architectures
		Available: st.Bavail * size, Total: st.Blocks * size, InodesFree: st.Ffree, Inodes: st.Files,
	}, nil
}

// nothingPrograms do nothing, in the places where distributions have them.
func nothingPrograms() []string { return []string{"/bin/true", "/usr/bin/true"} }

// cloneUserNS runs a program that does nothing in a new user namespace. It does not map ids: that is newuidmap's part,
// which has checks of its own.
func cloneUserNS(ctx context.Context) error {
	for _, program := range nothingPrograms() {
		if _, err := os.Stat(program); err != nil {
			continue
		}
		cmd := exec.CommandContext(ctx, program)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}
		return cmd.Run()
	}
	return nil // nothing to try with: the start itself will tell
}

// packetRules maps this account to root in the namespaces, which takes no privilege (user_namespaces(7)). The error is the
// first line of nft's complaint.
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
	if _, after, ok := strings.Cut(text, "Error: "); ok { // before it stands where in our text
		text = after
	}
	if err != nil && text != "" {
		return errors.New(text)
	}
	return err
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

// mayMapIDs knows the two ways in which distributions give the privilege: set-uid root, or the file capability
// (capabilities(7)), here in the layout of struct vfs_cap_data of linux/capability.h.
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

// waitingPrograms end with their standard input, in the places where distributions have them.
func waitingPrograms() []string { return []string{"/bin/cat", "/usr/bin/cat"} }

// mapIDs tells what the program complained of.
func mapIDs(ctx context.Context, path string, ids ...string) error {
	ctx, cancel := context.WithTimeout(ctx, programTimeout)
	defer cancel()
	for _, program := range waitingPrograms() {
		if _, err := os.Stat(program); err != nil {
			continue
		}
		waiting := exec.CommandContext(ctx, program)
		waiting.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER}
		stdin, err := waiting.StdinPipe()
		if err == nil {
			err = waiting.Start()
		}
		if err != nil {
			return nil // the check of user namespaces says so
		}
		mapping := exec.CommandContext(ctx, path, append([]string{strconv.Itoa(waiting.Process.Pid)}, ids...)...)
		mapping.Env = []string{"LC_ALL=C"} // explainIDMap reads the complaint
		out, err := mapping.CombinedOutput()
		_ = stdin.Close()
		_ = waiting.Wait() // with whatever it ends
		if text := strings.TrimSpace(string(out)); err != nil && text != "" {
			err = errors.New(text[strings.LastIndexByte(text, '\n')+1:])
		}
		return err
	}
	return nil // nothing to try with: the start itself will tell
}

func delegation() (cgroupv2.Host, cgroupv2.Delegation, error) {
	h, err := cgroupv2.DetectHost(cgroupv2.Options{})
	if err != nil {
		return cgroupv2.Host{}, cgroupv2.Delegation{}, err
	}
	d, err := cgroupv2.Detect(h, cgroupv2.Options{})
	return h, d, err
}
