package noderole

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
)

// shm is a tmpfs on every Linux system.
const shm = "/dev/shm"

func TestCheckHostPaths(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp(shm, "rootlessnode-")
	assert.NilError(t, err)
	t.Cleanup(func() { assert.NilError(t, os.RemoveAll(dir)) })
	l, err := net.Listen("unix", dir+"/sock")
	assert.NilError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	link := filepath.Join(t.TempDir(), "link")
	assert.NilError(t, os.Symlink(dir, link))
	h := hostPaths{volatile: []string{"/nowhere", shm}, hidden: []string{"/proc"}} // the latter is not a tmpfs
	for _, tc := range []struct{ path, kind, reason string }{
		{dir, "", reasonVolatile},
		{dir + "/a/b/c", "DirectoryOrCreate", reasonVolatile},
		{link + "/a", "DirectoryOrCreate", reasonVolatile},
		{dir + "/sock/below", "", reasonVolatile},
		{dir + "/sock", "", ""},
		{dir + "/later", "Socket", ""},
		{t.TempDir(), "Directory", ""},
		{"/proc/self", "", ""},
		{"/nowhere/at/all", "DirectoryOrCreate", ""},
		{"relative", "", ""},
	} {
		reason, message := h.check(kubeapi.HostPath{Path: tc.path, Type: tc.kind})
		assert.Equal(t, reason, tc.reason, "%s: %s", tc.path, message)
	}
	h.hidden = []string{shm}
	reason, message := h.check(kubeapi.HostPath{Path: dir + "/bus", Type: "Socket"})
	assert.Equal(t, reason, reasonHidden)
	assert.Assert(t, is.Contains(message, "hostPath "+dir+"/bus of the host is hidden"))
}
