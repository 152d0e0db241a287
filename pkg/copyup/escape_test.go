package copyup

import (
	"os"
	"testing"

	"gotest.tools/v3/assert"
)

func TestEscapes(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		dir, link string
		want      bool
	}{
		{"ssl", "../../var/lib/ca", true}, {"ssl", "../pki/x", false}, {"ssl", "/var/lib/ca", false}, {"ssl", "certs", false},
		{"a/b", "../../x", false}, {"a/b", "../../../x", true}, {"a/b", "x/../../../../usr", true}, {"a/b", "./.././../..//y", true},
	} {
		assert.Equal(t, escapes(tc.dir, tc.link), tc.want, "%s %s", tc.dir, tc.link)
	}
}

func TestEscapingDirs(t *testing.T) {
	t.Parallel()
	host := t.TempDir()
	makeTree(t, host, "ssl/openssl.cnf", "ssl/certs -> ../../var/lib/ca/pem", "top -> ../usr/share/top", "pki/a/b/c -> ../../../../usr/x", "pki/a/d -> ../x",
		"mnt/x/y -> ../../../z", "1/2/3/4/5/6 -> ../../../../../../x")
	assert.DeepEqual(t, escapingDirs("/etc", host, map[string]bool{host + "/mnt": true}), []string{"/etc/pki/a/b", "/etc/ssl"})
}

// TestRelativeLinksKeepTheirMeaning copies up a host with nested relative links out of /etc, like the certificate authorities of
// openSUSE, and into another copied-up directory. They lead to the same files inside, in two starts.
func TestRelativeLinksKeepTheirMeaning(t *testing.T) {
	spec := persistSpec(os.Getenv(envHost))
	switch level() {
	case "first", "second":
		_, err := start(t, spec, os.Getenv(envHost))
		assert.NilError(t, err)
		assert.Equal(t, read(t, "/etc/cas/certs/bundle"), "var/lib/ca/pem/bundle\n")
		assert.Equal(t, read(t, "/etc/cas/openssl.cnf"), "etc/cas/openssl.cnf\n")
		assert.Equal(t, read(t, "/etc/pki/tls/certs/bundle"), "opt/ca/bundle\n")
		assert.Equal(t, read(t, "/etc/pki/other"), "etc/pki/other\n")
		assert.Equal(t, read(t, "/var/lib/app/data"), "opt/ca/bundle\n")
		assert.NilError(t, os.WriteFile("/etc/cas/made-"+level(), []byte("kept"), 0o600))
		if level() == "second" {
			assert.Equal(t, read(t, "/etc/cas/made-first"), "kept")
		}
	default:
		asEachUser(t, func(uid int, host string, run func(level string)) {
			if uid == os.Getuid() && uid != 0 {
				t.Skip("the directories of the host belong to the account, so that they stay links")
			}
			persistHost(t, host, uid)
			makeTree(t, host, "var/lib/ca/pem/bundle", "opt/ca/bundle", "etc/cas/certs -> ../../var/lib/ca/pem", "etc/cas/openssl.cnf",
				"etc/pki/tls/certs/bundle -> ../../../../opt/ca/bundle", "etc/pki/other", "var/lib/app/data -> ../../../opt/ca/bundle")
			for _, dir := range []string{"etc/cas", "etc/pki/tls/certs", "var/lib/app"} {
				assert.NilError(t, os.Chown(host+"/"+dir, 4711, -1))
			}
			run("first")
			run("second")
			_, err := os.Lstat(host + "/etc/cas/made-first")
			assert.ErrorIs(t, err, os.ErrNotExist)
		})
	}
}
