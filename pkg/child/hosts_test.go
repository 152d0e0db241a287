package child

import (
	"os"
	"path/filepath"
	"testing"

	"gotest.tools/v3/assert"
)

func TestEnsureHosts(t *testing.T) {
	t.Parallel()
	const own = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"
	const complete = "# comment\n127.0.0.1\tLocalhost a # b\n::1 ip6-localhost localhost\n192.0.2.1 c\n"
	link := func(target string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) { assert.NilError(t, os.Symlink(target, path)) }
	}
	file := func(text string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			host := path + ".host"
			assert.NilError(t, os.WriteFile(host, []byte(text), 0o600))
			link(host)(t, path)
		}
	}
	for name, c := range map[string]struct {
		host func(t *testing.T, path string)
		want string
	}{
		"complete":     {file(complete), complete},
		"missing":      {func(*testing.T, string) {}, own},
		"empty":        {file(""), own},
		"dangling":     {link("/nonexistent/hosts"), own},
		"a directory":  {func(t *testing.T, path string) { assert.NilError(t, os.Mkdir(path, 0o700)) }, own},
		"no localhost": {file("127.0.0.1 a # localhost\n10.0.0.1 localhost"), own + "127.0.0.1 a # localhost\n10.0.0.1 localhost"},
		"only IPv4":    {file("127.0.0.1 localhost\n"), "::1 localhost ip6-localhost ip6-loopback\n127.0.0.1 localhost\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "hosts")
			c.host(t, path)
			before, _ := os.ReadFile(path + ".host")
			assert.NilError(t, ensureHosts(path))
			got, err := os.ReadFile(path)
			assert.NilError(t, err)
			assert.Equal(t, string(got), c.want)
			after, _ := os.ReadFile(path + ".host")
			assert.Equal(t, string(after), string(before), "the host's file was changed")
		})
	}
}
