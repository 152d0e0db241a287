package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// Environment variables with which hack/vm.sh describes the virtual machine that it has started: a process in the network namespace
// that has the machine's interface tap0, and the file with the SSH key for the machine.
const (
	envMachine    = "ROOTLESSNODE_E2E_MACHINE"
	envMachineKey = "ROOTLESSNODE_E2E_MACHINE_KEY"
)

// Constants that test/vm has too: the number of the machine's address, its account, the directory of the build, and the file
// in which the account finds the result of the test.
const (
	machineNumber  = 2
	machineAccount = "dev"
	machineOut     = "/opt/rootlessnode"
	machineWord    = "joined"
)

// machineLimit is the time limit for the boot and for the verdicts that run before the first login. loginLimit is for one login.
var (
	machineLimit = patiently(10 * time.Minute)
	loginLimit   = patiently(20 * time.Second)
)

// loginScript runs a command line in the machine, with the paths of the build replaced by those in the machine.
const loginScript = `
from=$1 to=$2 key=$3 at=$4
shift 4
line=
for arg; do line+=" $(printf %q "${arg//"$from"/$to}")"; done
exec ssh -F none -i "$key" -o IdentitiesOnly=yes -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null \
	-o LogLevel=ERROR -o ConnectTimeout=60 -o ServerAliveInterval=30 -o ServerAliveCountMax=10 "$at" "$line"`

// machine requires a virtual machine that hack/vm.sh has started.
var machine = testutil.Requirement{Name: "e2e-machine", Check: func() error {
	if os.Getenv(envMachine) == "" || os.Getenv(envMachineKey) == "" {
		return fmt.Errorf("%s and %s are not set; run hack/vm.sh prepare missing_controllers pasted joined", envMachine, envMachineKey)
	}
	return nil
}}

// newHostAndMachine creates a host and connects it to the virtual machine with a bridge in the machine's network namespace.
func newHostAndMachine(t *testing.T) []*testHost {
	t.Helper()
	testutil.Require(t, machine, built, testutil.Root, accounts(1), testutil.Program("ip"), testutil.Program("nsenter"), testutil.Program("ssh"))
	pid, err := strconv.Atoi(os.Getenv(envMachine))
	assert.NilError(t, err)
	m := &testHost{t: t, pid: pid, ip: hostIP(hostNet + strconv.Itoa(machineNumber)), account: machineAccount}
	own, err := os.Readlink("/proc/self/ns/net")
	assert.NilError(t, err)
	eventually(t, netnsLimit, "the machine's network namespace", func() error {
		if now, err := os.Readlink(m.netns()); err != nil || now == own {
			return fmt.Errorf("%s is %s, the test's is %s: %w", m.netns(), now, own, err)
		}
		argv := append(m.enter(), "ip", "link", "show", "tap0")
		out, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	bridge := newBridge(t, pid)
	bridge.do("ip", "link", "set", "tap0", "master", "br0", "up")
	m.login = append(m.enter(), "/bin/bash", "-c", loginScript, "login", filepath.Clean(os.Getenv(envOut)), machineOut,
		os.Getenv(envMachineKey), machineAccount+"@"+string(m.ip))
	return []*testHost{bridge.host(1, accountNames()[0]), m}
}

// inMachine runs a command line in the machine.
func (h *testHost) inMachine(limit time.Duration, args ...string) (output string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), limit) // t.Context has ended in cleanup functions
	defer cancel()
	argv := append(h.wrap(), args...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.WaitDelay = 5 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err = cmd.Run(); err != nil {
		err = fmt.Errorf("in the machine: %v: %w, within %v: %s", args, err, limit, out.String())
	}
	return out.String(), err
}

// waitLogin waits until a login to the machine succeeds. It fails the test if the machine has ended.
func (h *testHost) waitLogin() {
	h.t.Helper()
	eventually(h.t, machineLimit, "a login to the machine", func() error {
		if _, err := os.Stat(h.netns()); err != nil {
			h.t.Fatalf("the machine has ended: %v", err)
		}
		_, err := h.inMachine(loginLimit, "true") // loginLimit, because ssh waits much longer for a machine that ends during the login
		return err
	})
}

// writeResult writes the result of the test to a file in the machine, whose script then continues.
func (h *testHost) writeResult(failed bool) {
	word := "passed"
	if failed {
		word = "failed"
	}
	if _, err := h.inMachine(podLimit, "/bin/sh", "-c", "echo "+word+" >"+machineWord); err != nil {
		h.t.Errorf("write the result in the machine: %v", err)
	}
}

// machineAnswers is answers for a virtual machine: the request is sent from inside of it.
func (h *testHost) machineAnswers(at hostIP, port int, udp bool) error {
	if udp {
		_, err := h.inMachine(portsLimit, binary("netprobe"), "echo", "udp://"+at.port(port)+"/64")
		return err
	}
	out, err := h.inMachine(portsLimit, binary("netprobe"), "get", "http://"+at.port(port)+"/")
	if err == nil && !strings.Contains(out, "hello from echo-") {
		err = errors.New("got " + out)
	}
	return err
}

// leftScript prints files, processes, cgroups and mounts of a node that are left in a machine. The shell reads it from standard input,
// so that pgrep does not find the shell's own command line.
const leftScript = `
for f in %[2]s "$XDG_RUNTIME_DIR/rootlessnode/%[1]s"*; do [ ! -e "$f" ] || echo "$f"; done
pgrep -u "$(id -un)" -a -f 'containerd|rootlessnode'
find "/sys/fs/cgroup/user.slice/user-$(id -u).slice" -path '*rootlessnode*' -type d
grep rootlessnode/nodes /proc/self/mountinfo
true`

// machineForgot is forgot for a virtual machine.
func (h *testHost) machineForgot(name, data string) {
	h.t.Helper()
	eventually(h.t, podLimit, "nothing of the node is left in the machine", func() error {
		left, code := h.paste(podLimit, fmt.Sprintf(leftScript, name, data))
		if code != 0 || strings.TrimSpace(left) != "" {
			return fmt.Errorf("exit %d, left: %s", code, left)
		}
		return nil
	})
}

// TestJoinMachine: a node in a virtual machine, with a kernel and a systemd of its own, joins a cluster whose control plane is a
// node here. It is the verdict `joined` of hack/vm.sh.
func TestJoinMachine(t *testing.T) {
	hosts := newHostAndMachine(t)
	const m = 1
	t.Cleanup(func() { hosts[m].writeResult(t.Failed()) })
	c := newJoinedOn(t, "machine", hosts, "")
	c.part("the host", func(c *joined) {
		c.control().up()
		c.control().importImage()
	})
	c.part("login to the machine", func(c *joined) { c.hosts[m].waitLogin() })
	c.part("the machine joins with the printed command", func(d *joined) {
		d.join(m, d.invite())
		c.nodes[m].args = d.nodes[m].args
		d.nodes[m].importImage()
	})
	c.part("Nodes have their hosts' addresses", func(c *joined) { c.addresses() })
	c.part("a pod on each", func(c *joined) { c.apply() })
	c.part("logs, exec, port-forward and cp on each", func(c *joined) { c.use() })
	c.part("pods reach pods", func(c *joined) { c.traffic() })
	c.part("a node port answers on each", func(c *joined) { c.nodePorts() })
	c.part("drain-and-leave", func(c *joined) { c.leaves(m) })
}
