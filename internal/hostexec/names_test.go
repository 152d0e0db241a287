package hostexec

import (
	"os"
	"testing"

	"gotest.tools/v3/assert"
)

func TestResolvConf(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]string{
		"": "nameserver 10.43.0.10\nsearch default.svc.c svc.c c\noptions ndots:5\n",
		"# mine\nnameserver 1.1.1.1\ndomain old\nsearch corp.example lan .\noptions ndots:2 timeout:1 trust-ad\nsortlist\n": "nameserver 10.43.0.10\nsearch default.svc.c svc.c c corp.example lan\n" +
			"options timeout:1 ndots:5\n",
	} {
		assert.Equal(t, ResolvConf("10.43.0.10", "c", host), want)
	}
}

func TestHosts(t *testing.T) {
	t.Parallel()
	assert.Equal(t, Hosts("192.0.2.1", "host", ""), "192.0.2.1 host\n")
	assert.Equal(t, Hosts("192.0.2.1", "host", "127.0.0.1 localhost"), "127.0.0.1 localhost\n192.0.2.1 host\n")
}

// Services that use the host's network do not resolve names.
func TestNSSwitch(t *testing.T) {
	t.Parallel()
	assert.Equal(t, NSSwitch("passwd: files\n  hosts:  mymachines resolve [!UNAVAIL=return] files dns\nnetworks: files"),
		"passwd: files\nhosts: files dns\nnetworks: files")
}

func TestEnter(t *testing.T) {
	t.Parallel()
	assert.DeepEqual(t, EnterNode("/bin/nsenter", 7, []string{"a", "-b"}),
		[]string{"/bin/nsenter", "-t", "7", "-U", "-n", "--preserve-credentials", "--", "a", "-b"})
	f, err := os.Open("/proc/self/ns/user")
	assert.NilError(t, err)
	defer f.Close()
	argv := EnterIDs("/bin/nsenter", f, []string{"a"})
	st, err := os.Stat(argv[1][len("--user="):])
	assert.NilError(t, err)
	own, err := f.Stat()
	assert.NilError(t, err)
	assert.Assert(t, os.SameFile(st, own))
}
