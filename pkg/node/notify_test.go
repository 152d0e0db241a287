package node

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// Not parallel: it changes the environment.
func TestNotifier(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	assert.NilError(t, err)
	t.Cleanup(func() { assert.Check(t, l.Close()) })
	t.Setenv("NOTIFY_SOCKET", socket)
	t.Setenv("WATCHDOG_USEC", "3000000")
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	n := takeNotifier(logrus.New())
	n.stopLimit = 90 * time.Second
	assert.Equal(t, n.watchdog, 3*time.Second)
	for _, k := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		_, there := os.LookupEnv(k)
		assert.Assert(t, !there, "%s must be removed from the environment", k)
	}
	next := func() string {
		assert.NilError(t, l.SetReadDeadline(time.Now().Add(10*time.Second)))
		buf := make([]byte, 256)
		count, err := l.Read(buf)
		assert.NilError(t, err)
		return string(buf[:count])
	}
	for _, c := range []struct {
		state  status.State
		reason string
		want   string
	}{
		{status.NodeStarting, "kubelet\nstarts", "STATUS=starting: kubelet starts"},
		{status.NodeReady, "", "STATUS=ready\nREADY=1"},
		{status.NodeDegraded, "a port", "STATUS=degraded: a port"},
		{status.NodeStopping, "requested", "STATUS=stopping: requested\nSTOPPING=1\nEXTEND_TIMEOUT_USEC=105000000"},
		{status.NodeStopped, "", "STATUS=stopped"},
	} {
		n.notify(&status.Status{State: c.state, Reason: c.reason})
		assert.Equal(t, next(), c.want)
	}
	assert.Assert(t, takeNotifier(logrus.New()) == nil, "no service manager")
	t.Setenv("NOTIFY_SOCKET", socket)
	t.Setenv("WATCHDOG_USEC", "3000000")
	t.Setenv("WATCHDOG_PID", "1")
	assert.Equal(t, takeNotifier(logrus.New()).watchdog, time.Duration(0), "the watchdog is for another process")
}
