// Package trial tries the operations of a node's start that depend on the kernel, on the host's file systems and on the account. It
// does them in namespaces of its own, which end with the trial, and in a temporary directory. internal/preflight reports the results.
//
// Run starts a helper process, which is this executable with the role layout.RoleTrial. The helper waits until Run has mapped the
// account's ids into its user namespace, executes itself again to gain capabilities, and does the steps.
//
// Runs in: parent; Wait and Do in the helper.
package trial

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/proc"
)

// Step is an operation.
type Step string

// Steps. Each continues after the failure of another one, except that none is possible without StepStart and StepMap.
const (
	// StepStart creates the helper with a namespace of every kind.
	StepStart Step = "start"
	// StepMapUIDs and StepMapGIDs map the ids with newuidmap and newgidmap.
	StepMapUIDs Step = "map-uids"
	StepMapGIDs Step = "map-gids"
	// StepHostName sets the host name of the UTS namespace.
	StepHostName Step = "host-name"
	// StepPropagation makes the mounts receive those of the host.
	StepPropagation Step = "propagation"
	// StepTmp mounts a tmpfs over /tmp, StepProc mounts /proc, and StepCgroup mounts cgroup2 over /sys/fs/cgroup.
	StepTmp    Step = "tmp"
	StepProc   Step = "proc"
	StepCgroup Step = "cgroup"
	// StepTun creates a tap device, and StepEnter creates one from outside, with nsenter and ip, like RootlessKit.
	// StepUplink starts slirp4netns on that device. StepVeth, StepBridge and StepVXLAN create devices of the pod network, and StepNAT rules of the
	// packet filter.
	StepTun    Step = "tun"
	StepEnter  Step = "enter"
	StepUplink Step = "uplink"
	StepVeth   Step = "veth"
	StepBridge Step = "bridge"
	StepVXLAN  Step = "vxlan"
	StepNAT    Step = "nat"
	// The other steps are operations on files in Request.Dir: StepOwner gives a file to mapped ids, StepExec executes a program.
	StepOwner   Step = "owner"
	StepExec    Step = "exec"
	StepSymlink Step = "symlink"
	StepLink    Step = "link"
	StepRename  Step = "rename"
	StepLock    Step = "lock"
	StepMap     Step = "map"
	StepSocket  Step = "socket"
	StepNames   Step = "names"
	// StepMount mounts and unmounts a tmpfs with the programs that the kubelet uses.
	StepMount Step = "mount"
	// StepOverlay mounts overlayfs and removes a file of its lower layer.
	StepOverlay Step = "overlay"
)

// Map is an id map: the arguments of the program after the pid.
type Map struct {
	Program string
	Args    []string
}

// Request describes a trial.
type Request struct {
	// UIDs and GIDs are the id maps. Without a program, only the account's own id is mapped.
	UIDs, GIDs Map
	// NSEnter is the path of nsenter for StepEnter, which also needs Work.IP and Work.Tun. Empty: leave the step out.
	NSEnter string
	// Slirp is the path of slirp4netns for StepUplink, which follows StepEnter. Empty: leave the step out.
	Slirp string
	// Work are the steps in the helper.
	Work Work
}

// Work describes the steps in the helper. A step whose field is empty is left out.
type Work struct {
	// Tun is the path of the device.
	Tun string
	// IP, NFT and IPTables are paths of programs. NFT is preferred for StepNAT.
	IP, NFT, IPTables string
	// Mount and Umount are the paths of these programs.
	Mount, Umount string
	// Dir is an empty directory of the account, on the file system to try. Run does not remove it.
	Dir string
	// LastID is the highest mapped id.
	LastID int
}

// Fault is the failure of a step.
type Fault struct {
	Message string        `json:"message"`
	Errno   syscall.Errno `json:"errno,omitempty"`
}

func (f Fault) Error() string { return f.Message }

// Is makes errors.Is work for error numbers and for the errors of package os.
func (f Fault) Is(target error) bool {
	var number syscall.Errno
	if errors.As(target, &number) {
		return number == f.Errno
	}
	return f.Errno != 0 && f.Errno.Is(target)
}

// Result has the failed steps.
type Result map[Step]Fault

func (r Result) add(step Step, err error) {
	if err == nil {
		return
	}
	f := Fault{Message: err.Error()}
	var number syscall.Errno
	if errors.As(err, &number) {
		f.Errno = number
	}
	r[step] = f
}

// limit is the maximum duration of a trial, which normally needs a tenth of a second.
const limit = 10 * time.Second

// kinds are the namespaces of a node, see pkg/parent.
const kinds = unix.CLONE_NEWUSER | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS | unix.CLONE_NEWCGROUP

// Run does a trial. It leaves no process behind. Result is never nil.
//
// Errors: if the helper did not finish, for a reason that is not a step. Runs in: parent.
func Run(ctx context.Context, r Request) (Result, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	result := Result{}
	input, err := json.Marshal(r.Work)
	if err != nil {
		return result, fmt.Errorf("encode the trial: %w", err)
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args = []string{"rootlessnode", layout.RoleTrial}
	cmd.Env = append(os.Environ(), layout.RoleEnv(layout.RoleTrial, layout.Runtime{})...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: kinds, Pdeathsig: unix.SIGKILL}
	if r.UIDs.Program == "" {
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Geteuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getegid(), Size: 1}}
	}
	var out, errText bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &errText, time.Second
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return result, fmt.Errorf("create the pipe of the trial: %w", err)
	}
	if err := cmd.Start(); err != nil {
		result.add(StepStart, err)
		return result, nil
	}
	for _, m := range []struct {
		step Step
		Map
	}{{StepMapUIDs, r.UIDs}, {StepMapGIDs, r.GIDs}} {
		if m.Program != "" && len(result) == 0 {
			result.add(m.step, mapIDs(ctx, m.Map, cmd.Process.Pid))
		}
	}
	waited := len(result) == 0
	if waited {
		r.outside(ctx, cmd.Process.Pid, result)
		_, _ = stdin.Write(input) // fails if the helper has ended, which Wait reports
	}
	_ = stdin.Close() // without input, the helper ends
	err = cmd.Wait()
	if !waited {
		return result, nil
	}
	if err == nil {
		err = json.Unmarshal(out.Bytes(), &result) // adds to the result
	}
	if err != nil {
		return result, fmt.Errorf("try the start in namespaces: %w", proc.Failure(err, errText.Bytes()))
	}
	return result, nil
}

// mapIDs runs newuidmap or newgidmap. The error is the last line of its output.
func mapIDs(ctx context.Context, m Map, pid int) error {
	cmd := exec.CommandContext(ctx, m.Program, append([]string{strconv.Itoa(pid)}, m.Args...)...)
	cmd.Env, cmd.WaitDelay = append(os.Environ(), "LC_ALL=C"), time.Second
	out, err := cmd.CombinedOutput()
	out = bytes.TrimSpace(out)
	return proc.Failure(err, out[bytes.LastIndexByte(out, '\n')+1:])
}

// Wait is the role layout.RoleTrial: it waits until the ids are mapped and executes Do in the same process. Without input it returns
// nil. Runs in: the helper.
func Wait() error {
	input, err := io.ReadAll(os.Stdin)
	if err != nil || len(input) == 0 {
		return err
	}
	// The input is passed as an argument, because the pipe is empty now.
	env := append(os.Environ(), layout.RoleEnv(layout.RoleTrialInside, layout.Runtime{})...)
	return os.NewSyscallError("execve", syscall.Exec("/proc/self/exe", []string{"rootlessnode", string(input)}, env))
}

// Do is the role layout.RoleTrialInside: it does the steps as root of the user namespace and prints the result. Runs in: the helper.
func Do() error {
	var w Work
	if err := json.Unmarshal([]byte(os.Args[len(os.Args)-1]), &w); err != nil {
		return fmt.Errorf("decode the trial: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return json.NewEncoder(os.Stdout).Encode(w.do(ctx))
}
