// Package hostexec runs a program of the host in the network of a node. The program has the network namespace of the node, the host's
// file system with other files for name resolution, and the ids, the working directory, the environment and the terminal of its caller.
//
// The caller replaces itself by the program in three steps, so that the program keeps its pid, and signals, job control and the exit code
// need no relay:
//
//  1. nsenter(1) enters the user namespace of the node, because only a process with one thread can, and its network namespace.
//  2. Prepare creates a mount namespace for the process, which belongs to the node's user namespace, and creates a user namespace in which the
//     account has its own ids instead of those of root.
//  3. nsenter enters that user namespace and executes the program.
//
// Nothing is left on the host: the kernel removes the mount namespace with the last process in it.
//
// Runs in: parent.
package hostexec

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// View describes the file system of the program.
type View struct {
	// Scratch is a directory over which Prepare mounts a file system while it works.
	Scratch string `json:"scratch"`
	// Files are files of the host that have another content for the program.
	Files []File `json:"files"`
	// Hide are files of the host, such as sockets, that are replaced by an empty file.
	Hide []string `json:"hide,omitempty"`
}

// File is a file of the host with another content. Symbolic links in Path are followed.
type File struct {
	Path    string `json:"path"`
	Content string `json:"content"`
	// Optional: a file that does not exist on the host does not exist for the program either.
	Optional bool `json:"optional,omitempty"`
}

// EnterNode returns the command line of nsenter that enters the namespaces of the node with the given process 1 and executes argv.
func EnterNode(nsenter string, pid int, argv []string) []string {
	return append([]string{nsenter, "-t", strconv.Itoa(pid), "-U", "-n", "--preserve-credentials", "--"}, argv...)
}

// EnterIDs returns the command line of nsenter that enters the user namespace of Prepare and executes argv.
func EnterIDs(nsenter string, ids *os.File, argv []string) []string {
	return append([]string{nsenter, fmt.Sprintf("--user=/proc/self/fd/%d", ids.Fd()), "--preserve-credentials", "--"}, argv...)
}

// Prepare locks the calling thread and moves it to a mount namespace with the files of v. ids is a user namespace in which the account has
// its own ids. It stays open when this process executes another program.
//
// Runs as root of the node's user namespace, in the host's mount namespace. Call it without other goroutines and execute another program
// afterwards.
func Prepare(v View) (ids *os.File, err error) {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return nil, fmt.Errorf("create a mount namespace: %w", err)
	}
	// The host's mounts still appear here, and mounts made here do not appear on the host.
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return nil, fmt.Errorf("change the propagation of mounts: %w", err)
	}
	if err := v.mount(); err != nil {
		return nil, err
	}
	return ownIDs()
}

// mount bind-mounts the files of v over those of the host.
func (v View) mount() (err error) {
	const options = "size=1m,mode=0755"
	if err := unix.Mount("tmpfs", v.Scratch, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
		return fmt.Errorf("mount a file system over %s: %w", v.Scratch, err)
	}
	defer func() {
		// The files stay in use by their bind mounts.
		if unmountErr := unix.Unmount(v.Scratch, unix.MNT_DETACH); unmountErr != nil {
			err = errors.Join(err, fmt.Errorf("unmount %s: %w", v.Scratch, unmountErr))
		}
	}()
	files := v.Files
	for _, path := range v.Hide {
		files = append(files, File{Path: path, Optional: true})
	}
	for i, f := range files {
		target, err := filepath.EvalSymlinks(f.Path)
		if errors.Is(err, fs.ErrNotExist) && f.Optional {
			continue
		}
		source := filepath.Join(v.Scratch, strconv.Itoa(i))
		if err == nil {
			err = os.WriteFile(source, []byte(f.Content), 0o644)
		}
		if err == nil {
			err = unix.Mount(source, target, "", unix.MS_BIND, "")
		}
		if err != nil {
			return fmt.Errorf("replace %s: %w", f.Path, err)
		}
	}
	return nil
}

// ownIDs returns a user namespace in which the ids of the account are those that it has outside. The namespace is created with a process,
// which ends before ownIDs returns.
func ownIDs() (*os.File, error) {
	uid, err := outsideID("/proc/self/uid_map")
	if err != nil {
		return nil, err
	}
	gid, err := outsideID("/proc/self/gid_map")
	if err != nil {
		return nil, err
	}
	wait, end, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer wait.Close()
	hold := exec.Command("/proc/self/exe")
	hold.Env = append(os.Environ(), layout.RoleEnv(layout.RoleHold, layout.Runtime{})...)
	hold.Stdin = wait
	hold.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWUSER, Pdeathsig: unix.SIGKILL,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: uid, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: gid, Size: 1}},
	}
	if err := hold.Start(); err != nil {
		return nil, errors.Join(fmt.Errorf("create a user namespace: %w", err), end.Close())
	}
	ids, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", hold.Process.Pid))
	if err == nil {
		_, err = unix.FcntlInt(ids.Fd(), unix.F_SETFD, 0) // keep it over execve(2)
	}
	return ids, errors.Join(err, end.Close(), hold.Wait())
}

// Hold is the role layout.RoleHold. It waits until the standard input ends.
func Hold() error {
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// outsideID returns the id outside of this user namespace that root inside has.
func outsideID(file string) (int, error) {
	f, err := os.Open(file)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var inside, outside, size int
	if _, err := fmt.Fscan(f, &inside, &outside, &size); err != nil || inside != 0 {
		return 0, fmt.Errorf("%s: root is not mapped: %w", file, err)
	}
	return outside, nil
}
