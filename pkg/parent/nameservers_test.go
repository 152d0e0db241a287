package parent

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// TestNameServersChange checks that the node's name server forwards queries to the present name server of the host, also after the host's
// resolv.conf was replaced. The test process simulates the host, with its own /etc and network.
func TestNameServersChange(t *testing.T) {
	const inner = "PARENT_TEST_NAME_SERVERS"
	if os.Getenv(inner) != "" {
		changeNameServers(t)
		return
	}
	t.Parallel()
	testutil.Require(t, testutil.UserNS, testutil.Program("ip"), testutil.Program("nsenter"), testutil.Program(config.DriverSlirp))
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestNameServersChange$", "-test.v")
	cmd.Env = append(os.Environ(), inner+"=1")
	cmd.SysProcAttr = newNamespaces(os.Geteuid(), os.Getegid())
	out, err := cmd.CombinedOutput()
	assert.NilError(t, err, "%s", out)
}

// newNamespaces starts a process as root of a user namespace, with its own mounts and network.
func newNamespaces(uid, gid int) *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Pdeathsig: syscall.SIGKILL, Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{HostID: uid, Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: gid, Size: 1}},
	}
}

func changeNameServers(t *testing.T) {
	t.Helper()
	// The processes get SIGKILL when the thread ends that started them. awaitAnswer must not use and end it.
	runtime.LockOSThread()
	const resolvConf = "/etc/resolv.conf"
	assert.NilError(t, unix.Mount("none", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	assert.NilError(t, unix.Mount("none", "/etc", "tmpfs", 0, ""))
	assert.NilError(t, os.WriteFile(resolvConf, []byte("nameserver 127.0.0.1\n"), 0o644))
	execute(t, "ip", "link", "set", "lo", "up")
	for _, address := range []string{"127.0.0.1", "127.0.0.2"} {
		answerWith(t, address)
	}

	child := exec.Command("sleep", "infinity")
	child.SysProcAttr = newNamespaces(0, 0)
	assert.NilError(t, child.Start())
	t.Cleanup(func() { _ = child.Process.Kill(); _ = child.Wait() })
	_, ipnet, err := net.ParseCIDR(config.Default().Network.CIDR)
	assert.NilError(t, err)
	r := &run{Options: Options{Config: config.Default(), Log: logrus.New(), LogWriter: io.Discard}}
	d, err := r.slirpDriver(config.DriverSlirp, ipnet)
	assert.NilError(t, err)
	_, cleanup, err := d.ConfigureNetwork(child.Process.Pid, t.TempDir(), "")
	assert.NilError(t, err)
	t.Cleanup(func() { assert.Check(t, cleanup()) })
	execute(t, "nsenter", "-t", strconv.Itoa(child.Process.Pid), "-U", "-n", "--preserve-credentials", "ip", "address", "add", "10.0.2.100/24", "dev", tapName)

	awaitAnswer(t, child.Process.Pid, "127.0.0.1")
	assert.NilError(t, os.WriteFile(resolvConf+".new", []byte("nameserver 127.0.0.2\n"), 0o644))
	assert.NilError(t, os.Rename(resolvConf+".new", resolvConf))
	awaitAnswer(t, child.Process.Pid, "127.0.0.2")
}

func execute(t *testing.T, argv ...string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).CombinedOutput()
	assert.NilError(t, err, "%v: %s", argv, out)
}

// answerWith answers each datagram to port 53 of an address with the address.
func answerWith(t *testing.T, address string) {
	t.Helper()
	server, err := net.ListenPacket("udp4", net.JoinHostPort(address, "53"))
	assert.NilError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for buf := make([]byte, 64); ; {
			_, from, err := server.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = server.WriteTo([]byte(address), from) // the client repeats its query
		}
	}()
	t.Cleanup(func() { assert.Check(t, server.Close()); <-done })
}

// awaitAnswer queries the node's name server in the network namespace of a process until the answer is want. slirp4netns uses a name
// server for a second before it looks at resolv.conf again.
func awaitAnswer(t *testing.T, pid int, want string) {
	t.Helper()
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, so that the thread ends with this goroutine
		result <- query(pid, want)
	}()
	assert.NilError(t, <-result)
}

func query(pid int, want string) error {
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return err
	}
	c, err := net.Dial("udp4", "10.0.2.3:53")
	if err != nil {
		return err
	}
	defer c.Close()
	got, deadline := "no answer", time.Now().Add(endLimit)
	for got != want {
		if time.Now().After(deadline) {
			return errors.New(got)
		}
		buf := make([]byte, 64)
		if _, err := c.Write([]byte("?")); err != nil {
			return err
		}
		if err := c.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			return err
		}
		if n, err := c.Read(buf); err == nil {
			got = string(buf[:n])
		}
	}
	return nil
}
