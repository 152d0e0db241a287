package e2e

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// TestWokenByItsPort checks socket activation: the service manager listens at the API server's port, the first connection starts the
// node and is answered, and the node notifies the manager of its state.
func TestWokenByItsPort(t *testing.T) {
	t.Parallel()
	const program = "systemd-socket-activate"
	testutil.Require(t, testutil.Program(program))
	n := newNode(t, "e2e-woken")
	address := ""
	for _, arg := range n.args {
		if port, ok := strings.CutPrefix(arg, "api.port="); ok {
			address = net.JoinHostPort("127.0.0.1", port)
		}
	}
	manager := filepath.Join(t.TempDir(), "notify")
	heard, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: manager, Net: "unixgram"})
	assert.NilError(t, err)
	defer heard.Close()

	argv := []string{"--listen=" + address}
	for _, kv := range append(os.Environ(), "NOTIFY_SOCKET="+manager) {
		argv = append(argv, "--setenv="+kv)
	}
	argv = append(argv, binary("rootlessnode"), "--name", n.name, "up", "--foreground")
	ctx, cancel := context.WithTimeout(t.Context(), 2*upLimit)
	defer cancel()
	parent := exec.CommandContext(ctx, program, append(argv, n.args...)...)
	var log strings.Builder
	parent.Stdout, parent.Stderr = &log, &log
	assert.NilError(t, parent.Start())
	ended := make(chan error, 1)
	go func() { ended <- parent.Wait() }()

	var first net.Conn
	eventually(t, podLimit, "the manager's socket", func() (err error) {
		first, err = net.Dial("tcp4", address)
		return err
	})
	defer first.Close()
	assert.NilError(t, first.SetDeadline(time.Now().Add(upLimit)))
	// The certificate is not known here, because the node creates it while it starts.
	secure := tls.Client(first, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // see above
	assert.NilError(t, secure.HandshakeContext(ctx))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/version", nil)
	assert.NilError(t, err)
	assert.NilError(t, req.Write(secure))
	_, err = secure.Read(make([]byte, 1))
	assert.NilError(t, err, "the first connection is answered")

	hear := func(want string) {
		t.Helper()
		assert.NilError(t, heard.SetReadDeadline(time.Now().Add(upLimit)))
		for said := ""; !strings.Contains(said, want); {
			buf := make([]byte, 4096)
			length, err := heard.Read(buf)
			assert.NilError(t, err, "waiting for the notification %s, last received %q", want, said)
			said = string(buf[:length])
		}
	}
	hear("READY=1")
	assert.Equal(t, n.status().State, status.NodeReady)
	n.kubectl("get", "nodes")

	n.down()
	assert.NilError(t, <-ended, "the parent's output:\n%s", log.String())
	hear("STOPPING=1")
}
