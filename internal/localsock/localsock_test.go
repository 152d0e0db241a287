package localsock

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

func TestListenRefusals(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	assert.NilError(t, os.WriteFile(file, nil, 0o600))
	_, err := Listen(file)
	assert.ErrorContains(t, err, "the file exists and is not a socket")
	_, err = os.Stat(file)
	assert.NilError(t, err)

	long := "/" + strings.Repeat("d", 110)
	_, err = Listen(long)
	assert.Check(t, is.ErrorIs(err, errdefs.ErrConfig))
	assert.ErrorContains(t, err, "the path has 111 bytes; the maximum for unix sockets is 107")
	_, err = net.Dial("unix", long)
	assert.Check(t, NotRunning(err), "%v", err)
}

func TestPeerUIDIsOurs(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "ls")
	assert.NilError(t, err)
	defer func() { assert.Check(t, os.RemoveAll(dir)) }()
	l, err := Listen(filepath.Join(dir, "s"))
	assert.NilError(t, err)
	own := Own(l)
	c, err := net.Dial("unix", l.Addr().String())
	assert.NilError(t, err)
	got, err := own.Accept()
	assert.NilError(t, err)
	uid, err := PeerUID(got.(*net.UnixConn))
	assert.NilError(t, err)
	assert.Equal(t, uid, os.Getuid())
	assert.NilError(t, got.Close())
	assert.NilError(t, c.Close())
	assert.NilError(t, l.Close())
	_, err = os.Stat(filepath.Join(dir, "s"))
	assert.Check(t, os.IsNotExist(err))
}
