package hostsetup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// etcOf returns a host with these files below /etc.
func etcOf(t *testing.T, files map[string]string) *env {
	t.Helper()
	e := &env{Options: Options{Root: t.TempDir(), User: "dev", SubidCount: hostinfo.MinSubids, LookPath: func(string) string { return "" }}}
	assert.NilError(t, os.Mkdir(e.path("etc"), 0o755))
	for name, text := range files {
		assert.NilError(t, os.WriteFile(e.path("etc/"+name), []byte(text), 0o644))
	}
	return e
}

func (e *env) text(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(e.path("etc/" + name))
	assert.NilError(t, err)
	return string(b)
}

func subidsOf(t *testing.T, e *env) Step {
	t.Helper()
	s, err := subidStep(&Plan{env: e, record: &record{User: e.User, Steps: map[string]entry{}, env: e}})
	assert.NilError(t, err)
	return s
}

// TestSubidsAreLocked checks that rows are not lost when several processes add rows at the same time.
func TestSubidsAreLocked(t *testing.T) {
	t.Parallel()
	const accounts = 8
	passwd := ""
	for i := range accounts {
		passwd += fmt.Sprintf("u%d:x:%d:%[2]d::/:/bin/sh\n", i, 2000+i)
	}
	e := etcOf(t, map[string]string{"passwd": passwd, "subuid": "other:100000:65536\r\n", "subgid": ""})
	var all sync.WaitGroup
	for i := range accounts {
		own := *e
		own.User = fmt.Sprintf("u%d", i)
		s := subidsOf(t, &own)
		all.Go(func() { assert.Check(t, s.Do(t.Context())) })
	}
	all.Wait()
	for _, file := range []string{hostinfo.SubuidFile, hostinfo.SubgidFile} {
		rows, bad, err := hostinfo.ReadSubids(e.Root, file)
		assert.NilError(t, err)
		assert.Assert(t, len(bad) == 0 || len(bad) == 1 && bad[0].Owner == "other", "%v", bad)
		for i, r := range rows {
			for _, o := range rows[:i] {
				assert.Assert(t, !r.Overlaps(o) && r.Owner != o.Owner, "%s %s", r, o)
			}
		}
		assert.Assert(t, len(rows) >= accounts, file)
	}
	assert.Assert(t, strings.HasPrefix(e.text(t, "subuid"), "other:100000:65536\r\n"), "rows of others must not change")
	left, err := filepath.Glob(e.path("etc/*.lock"))
	assert.NilError(t, err)
	assert.DeepEqual(t, left, []string{e.path("etc/.pwd.lock")}) // as lckpwdf(3) leaves it
}

func TestSubidLockOfOthers(t *testing.T) {
	t.Parallel()
	e := etcOf(t, map[string]string{"passwd": "dev:x:7:7::/:/bin/sh\n"})
	lock := e.path("etc/subgid.lock")
	hold := func(text string) { assert.NilError(t, os.WriteFile(lock, []byte(text), 0o600)) }
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, text := range []string{strconv.Itoa(os.Getppid()) + "\x00", strconv.Itoa(os.Getppid()), "", "x"} {
		hold(text)
		_, err := e.lockSubids(ctx)
		assert.ErrorContains(t, err, "subgid.lock is held by ")
		assert.Equal(t, errdefs.ReportOf(err).Hints[0], "# if no useradd or usermod is running:\nrm "+hostinfo.Quote(lock))
		_, err = os.Stat(e.path("etc/subuid.lock"))
		assert.ErrorIs(t, err, os.ErrNotExist, "acquired locks must be released")
	}
	gone := exec.Command("true")
	assert.NilError(t, gone.Run())
	hold(strconv.Itoa(gone.Process.Pid) + "\x00")
	unlock, err := e.lockSubids(t.Context())
	assert.NilError(t, err)
	assert.Equal(t, e.text(t, "subgid.lock"), strconv.Itoa(os.Getpid())+"\x00", "must be in the format of shadow's programs")
	unlock()
	_, err = os.Stat(lock)
	assert.ErrorIs(t, err, os.ErrNotExist)
}

// TestSubidLockIsShadows checks that usermod waits while host setup holds the lock.
func TestSubidLockIsShadows(t *testing.T) {
	t.Parallel()
	testutil.Require(t, testutil.Root, testutil.Program("usermod"))
	e := etcOf(t, map[string]string{
		"passwd": "dev:x:2007:2007::/:/bin/sh\n", "group": "dev:x:2007:\n", "shadow": "dev:!:1::::::\n", "subuid": "", "subgid": "",
		"login.defs": "",
	})
	usermod := func(ctx context.Context) (string, error) {
		out, err := exec.CommandContext(ctx, "usermod", "--prefix", e.Root, "--add-subuids", "300000-300009", "dev").CombinedOutput()
		return string(out), err
	}
	unlock, err := lockByLink(t.Context(), e.path(hostinfo.SubuidFile))
	assert.NilError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second) // it needs 10 ms, and waits up to 15 s for a lock
	defer cancel()
	out, err := usermod(ctx)
	assert.ErrorContains(t, err, "killed", out)
	assert.Equal(t, e.text(t, "subuid"), "")
	unlock()
	out, err = usermod(t.Context())
	assert.NilError(t, err, out)
	assert.Equal(t, e.text(t, "subuid"), "dev:300000:10\n")
}

func TestReplaceText(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file, link := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	assert.NilError(t, os.WriteFile(file, []byte("before"), 0o600))
	assert.NilError(t, os.Chmod(file, 0o640))
	if os.Geteuid() == 0 {
		assert.NilError(t, os.Chown(file, 11, 12))
	}
	assert.NilError(t, os.Symlink("file", link))
	var before, after unix.Stat_t
	assert.NilError(t, unix.Stat(file, &before))
	assert.NilError(t, replaceText(link, []byte("after")))
	assert.NilError(t, unix.Lstat(file, &after))
	b, err := os.ReadFile(link)
	assert.NilError(t, err)
	assert.Equal(t, string(b), "after")
	assert.Assert(t, before.Ino != after.Ino, "the file must be replaced atomically")
	assert.DeepEqual(t, []uint32{after.Mode, after.Uid, after.Gid}, []uint32{before.Mode, before.Uid, before.Gid})
	target, err := os.Readlink(link)
	assert.NilError(t, err)
	assert.Equal(t, target, "file")
}

// TestSubidsOfDirectoryServices checks that the range contains no id of an account, a group or a domain of a directory service.
func TestSubidsOfDirectoryServices(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		passwd, group, defs string
		listed, found       string // rows that the service lists, and rows that it finds by id
		want                string
	}{
		"local only":         {"", "", "", "", "", "dev:100000:65536"},
		"a local uid":        {"x:x:120000:5::/:/bin/sh\n", "", "", "", "", "dev:120001:65536"},
		"a local gid":        {"", "x:x:130000:\n", "", "", "", "dev:130001:65536"},
		"login.defs":         {"", "", "SUB_UID_MIN 300000\nSUB_GID_MIN\t400000\n", "", "", "dev:400000:65536"},
		"listed":             {"", "", "SUB_UID_MIN 200000", "ad:x:212345:7:AD:/:/bin/sh", "", "dev:400000:65536"},
		"found by id":        {"", "", "SUB_UID_MIN 200000", "", "200512:x:200512:7::/:/bin/sh", "dev:400000:65536"},
		"systemd's own user": {"", "", "", "dynamic:x:61234:61234::/:/bin/sh", "", "dev:100000:65536"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := etcOf(t, map[string]string{
				"passwd": "dev:x:2000:2000::/:/bin/sh\n" + tc.passwd, "group": tc.group, "login.defs": tc.defs,
			})
			getent := e.path("getent")
			script := fmt.Sprintf("[ \"$1\" = passwd ] || exit 2\nshift\nif [ $# = 0 ]; then echo '%s'; exit; fi\n"+
				"for id; do [ \"$id\" != '%s' ] || echo '%s'; done; exit 2\n", tc.listed, firstOf(tc.found), tc.found)
			testutil.Script(t, getent, script)
			e.LookPath = func(program string) string {
				if program == "getent" {
					return getent
				}
				return ""
			}
			rows, err := e.missingRows(t.Context())
			assert.NilError(t, err)
			assert.Equal(t, rows[hostinfo.SubuidFile], tc.want)
			assert.Equal(t, rows[hostinfo.SubgidFile], tc.want)
		})
	}
}

func firstOf(row string) string { first, _, _ := strings.Cut(row, ":"); return first }

// TestSubidsFromAService checks that no file is written if a service provides the ids, because newuidmap(1) reads no file then.
func TestSubidsFromAService(t *testing.T) {
	t.Parallel()
	e := etcOf(t, map[string]string{"passwd": "dev:x:2000:2000::/:/bin/sh\n", "nsswitch.conf": "passwd: files sss\nsubid:  sss # IPA\n"})
	getsubids := e.path("getsubids")
	e.LookPath = func(program string) string {
		if program == "getsubids" {
			return getsubids
		}
		return ""
	}
	answer := func(text string) {
		testutil.Script(t, getsubids, text+"\n")
	}
	answer("echo 0: dev 2147483648 65536")
	rows, err := e.missingRows(t.Context())
	assert.NilError(t, err)
	assert.Equal(t, len(rows), 0)
	answer("exit 1")
	_, err = e.missingRows(t.Context())
	assert.ErrorContains(t, err, "subordinate ids come from sss (subid in /etc/nsswitch.conf), and dev has 0 there, but needs 65536")
	assert.ErrorIs(t, err, errdefs.ErrPreflight)
	assert.Assert(t, !errors.Is(err, os.ErrNotExist))
}
