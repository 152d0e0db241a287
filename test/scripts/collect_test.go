// Package scripts tests the shell functions in hack/lib.sh.
package scripts

import (
	"bytes"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// The account of the attacker. It exists on every machine.
const (
	attacker    = "nobody"
	attackerUID = 65534
)

const secret = "only root may read this"

// stage is a directory of root with a subdirectory of the attacker, a subdirectory for results, and a file that only root may read.
type stage struct {
	t                              *testing.T
	dir, attacker, results, secret string
}

func newStage(t *testing.T) *stage {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "rootlessnode-test.") // the attacker must have access
	assert.NilError(t, err)
	t.Cleanup(func() { assert.Check(t, os.RemoveAll(dir)) })
	s := &stage{t, dir, filepath.Join(dir, "attacker"), filepath.Join(dir, "results"), filepath.Join(dir, "secret")}
	assert.NilError(t, os.Chmod(dir, 0o755)) //nolint:gosec // the attacker must have access
	for _, d := range []string{s.attacker, s.results} {
		assert.NilError(t, os.Mkdir(d, 0o755))
	}
	assert.NilError(t, os.WriteFile(s.secret, []byte(secret), 0o600))
	assert.NilError(t, os.Chown(s.attacker, attackerUID, attackerUID))
	return s
}

// writeAsAttacker creates a file that the attacker owns.
func (s *stage) writeAsAttacker(name, text string) {
	s.t.Helper()
	path := filepath.Join(s.attacker, name)
	assert.NilError(s.t, os.WriteFile(path, []byte(text), 0o600))
	assert.NilError(s.t, os.Chown(path, attackerUID, attackerUID))
}

// run executes shell text with the functions of hack/lib.sh, with the arguments as $1 and so on.
func (s *stage) run(text string, args ...string) (string, error) {
	lib, err := filepath.Abs("../../hack/lib.sh")
	assert.NilError(s.t, err)
	script := "set -euo pipefail\n. " + lib + "\ncollect_seconds=20 collect_bytes=1048576 collect_files=50\n" + text
	cmd := exec.CommandContext(s.t.Context(), "bash", append([]string{"-c", script, "bash"}, args...)...)
	cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	out, err := cmd.CombinedOutput()
	s.t.Logf("%s", out)
	return string(out), err
}

// collected returns the contents of the collected files by name. It checks that all are regular files of root with mode 0644.
func (s *stage) collected() map[string]string {
	s.t.Helper()
	found := map[string]string{}
	assert.NilError(s.t, filepath.WalkDir(s.results, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == s.results {
			return err
		}
		var st unix.Stat_t
		assert.NilError(s.t, unix.Lstat(path, &st))
		assert.Check(s.t, is.Equal(st.Mode, uint32(unix.S_IFREG|0o644)), path)
		assert.Check(s.t, is.Equal(st.Uid, uint32(0)), path)
		b, err := os.ReadFile(path)
		assert.NilError(s.t, err)
		assert.Check(s.t, !bytes.Contains(b, []byte(secret)), path)
		found[filepath.Base(path)] = string(b)
		return nil
	}))
	return found
}

func names(m map[string]string) []string {
	var out []string
	for name := range m {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

func TestCollect(t *testing.T) {
	t.Parallel()
	testutil.Require(t, testutil.Root, testutil.Program("setpriv"), testutil.Program("setsid"))
	s := newStage(t)
	at := func(name string) string { return filepath.Join(s.attacker, name) }
	s.writeAsAttacker("good.txt", "fine")
	s.writeAsAttacker("empty.json", "")
	s.writeAsAttacker("setuid", "#!/bin/sh\n")
	assert.NilError(t, os.Chmod(at("setuid"), 0o4755)) //nolint:gosec // an attack
	victim := filepath.Join(s.dir, "victim")
	marker := filepath.Join(s.dir, "marker")
	for name, target := range map[string]string{
		"link.txt": s.secret, "passwd.txt": "/etc/passwd", "consoles.log": victim, "loop": "loop", "device.txt": "/dev/zero", "up": "..",
	} {
		assert.NilError(t, os.Symlink(target, at(name)))
	}
	assert.NilError(t, os.Link(s.secret, at("hard.txt")))
	assert.NilError(t, unix.Mkfifo(at("fifo"), 0o666))
	assert.NilError(t, unix.Mknod(at("zero"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5)))) //nolint:gosec // a small number
	socket, err := net.Listen("unix", at("socket"))
	assert.NilError(t, err)
	defer socket.Close()
	assert.NilError(t, os.Mkdir(at("directory"), 0o777)) //nolint:gosec // the attacker's
	assert.NilError(t, os.WriteFile(at("directory/inner"), nil, 0o666))
	for _, name := range []string{"-rf", ".hidden", "..x", "two\nlines", "$(touch " + filepath.Base(marker) + ")", "a;b", "a b", "esc\x1b[2J", "é"} {
		s.writeAsAttacker(name, "odd")
	}
	s.writeAsAttacker("huge", "x")
	assert.NilError(t, os.Truncate(at("huge"), 1<<40))

	out, err := s.run(`cd "$3"; collect nobody "$1" "$2"`, s.attacker, s.results, s.dir)
	assert.NilError(t, err)
	got := s.collected()
	assert.DeepEqual(t, names(got), []string{"empty.json", "good.txt", "huge", "setuid"})
	assert.Equal(t, got["good.txt"], "fine")
	assert.Equal(t, len(got["huge"]), 1<<20)
	for _, path := range []string{victim, marker} {
		_, err := os.Lstat(path)
		assert.Check(t, is.ErrorIs(err, fs.ErrNotExist), path)
	}
	assert.Check(t, !strings.ContainsFunc(out, func(r rune) bool { return r < ' ' && r != '\n' || r > '~' }), "the output must not contain control characters: %q", out)
	assert.Check(t, is.Contains(out, "truncated to 1048576 bytes: "+at("huge")))
	assert.Check(t, is.Contains(out, "nobody cannot read "+at("hard.txt")))

	// A file that was replaced after it was listed.
	for _, name := range []string{"link.txt", "passwd.txt", "fifo", "zero", "directory"} {
		out, err := s.run(`collect_one nobody "$1" "$2"`, at(name), filepath.Join(s.results, "late"))
		assert.NilError(t, err, out)
		late, ok := s.collected()["late"]
		assert.Check(t, !ok || strings.Trim(late, "\x00") == "", "%s: %q", name, late)
	}
	assert.NilError(t, os.RemoveAll(filepath.Join(s.results, "late")))

	// An old result is replaced; a link is not followed.
	assert.NilError(t, os.Remove(filepath.Join(s.results, "good.txt")))
	assert.NilError(t, os.Symlink(victim, filepath.Join(s.results, "good.txt")))
	_, err = s.run(`collect nobody "$1" "$2" 'g*.txt'`, s.attacker, s.results)
	assert.NilError(t, err)
	assert.Equal(t, s.collected()["good.txt"], "fine")

	// Results are not written to a directory that the account could have created.
	assert.NilError(t, os.Symlink(s.results, filepath.Join(s.dir, "link")))
	for _, to := range []string{filepath.Join(s.dir, "link"), s.attacker, filepath.Join(s.dir, "missing")} {
		out, err := s.run(`collect nobody "$1" "$2"`, s.attacker, to)
		assert.Check(t, is.ErrorContains(err, "exit status 1"))
		assert.Check(t, is.Contains(out, "is not a directory of root"))
	}

	for i := range 60 {
		s.writeAsAttacker("many-"+strconv.Itoa(i), "")
	}
	out, err = s.run(`collect nobody "$1" "$2" 'many-*'`, s.attacker, s.results)
	assert.NilError(t, err)
	assert.Check(t, is.Contains(out, "there are more than 50 files"))
}

// TestUnprivileged checks that a command of an account gets nothing from root but its arguments, and ends in time.
func TestUnprivileged(t *testing.T) {
	t.Parallel()
	testutil.Require(t, testutil.Root, testutil.Program("setpriv"), testutil.Program("setsid"), testutil.Program("script"))
	s := newStage(t)
	// script(1) provides a terminal for root.
	out, err := s.run(`export SECRET_OF_ROOT=x lib=$top/hack/lib.sh; script -qec 'bash -c ". \$lib; unprivileged nobody 20 sh -c \"id -u; env; : </dev/tty\" || echo no terminal"' /dev/null`)
	assert.NilError(t, err)
	assert.Check(t, is.Contains(out, strconv.Itoa(attackerUID)))
	assert.Check(t, is.Contains(out, "no terminal"))
	assert.Check(t, !strings.Contains(out, "SECRET_OF_ROOT"))

	// The account stops its own process.
	out, err = s.run(`unprivileged nobody 1 sh -c 'kill -STOP $$' || echo "ended with $?"`)
	assert.NilError(t, err)
	assert.Check(t, is.Contains(out, "ended with 1")) // 124 or 137
}

// TestDumpImage checks an image whose directory has names and links that lead out of it, as an attacker can create them.
func TestDumpImage(t *testing.T) {
	t.Parallel()
	testutil.Require(t, testutil.Root, testutil.Program("setpriv"), testutil.Program("setsid"), sbin("mkfs.ext4"), sbin("debugfs"))
	s := newStage(t)
	tree := filepath.Join(s.dir, "tree")
	assert.NilError(t, os.Mkdir(tree, 0o755))
	victim := filepath.Join(s.dir, "victim-link")
	for name, mode := range map[string]fs.FileMode{"verdicts": 0o600, "guest.log": 0o644, "AAvictim": 0o644, "BBBB": 0o644} {
		assert.NilError(t, os.WriteFile(filepath.Join(tree, name), []byte("by the attacker: "+name), mode))
	}
	assert.NilError(t, os.Symlink(victim, filepath.Join(tree, "AAAA")))
	assert.NilError(t, os.Symlink(s.secret, filepath.Join(tree, "secret.log")))
	assert.NilError(t, unix.Mknod(filepath.Join(tree, "device"), unix.S_IFBLK|0o666, int(unix.Mkdev(7, 0)))) //nolint:gosec // a small number
	image := filepath.Join(s.attacker, "share.ext4")
	assert.NilError(t, os.WriteFile(image, nil, 0o600))
	assert.NilError(t, os.Truncate(image, 8<<20))
	mkfs := exec.CommandContext(t.Context(), "mkfs.ext4", "-q", "-O", "^metadata_csum,^has_journal", "-d", tree, image)
	mkfs.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	out, err := mkfs.CombinedOutput()
	assert.NilError(t, err, "%s", out)
	b, err := os.ReadFile(image)
	assert.NilError(t, err)
	for from, to := range map[string]string{"AAvictim": "../outer", "BBBB": "AAAA"} {
		entry := func(name string) []byte { return append([]byte{byte(len(name)), 1}, name...) } // length, regular file, name
		assert.Equal(t, bytes.Count(b, entry(from)), 1, from)
		b = bytes.Replace(b, entry(from), entry(to), 1)
	}
	assert.NilError(t, os.WriteFile(image, b, 0o600))
	assert.NilError(t, os.Chown(image, attackerUID, attackerUID))

	_, err = s.run(`dump_image nobody "$1" "$2"; ls /var/tmp/rootlessnode-dump.* 2>/dev/null || true`, image, s.results)
	assert.NilError(t, err)
	got := s.collected()
	assert.Check(t, is.Equal(got["verdicts"], "by the attacker: verdicts"))
	assert.Check(t, is.Equal(got["guest.log"], "by the attacker: guest.log"))
	for name := range got {
		assert.Check(t, slices.Contains([]string{"verdicts", "guest.log", "AAAA"}, name), name)
	}
	for _, path := range []string{victim, filepath.Join(s.dir, "outer")} {
		_, err := os.Lstat(path)
		assert.Check(t, is.ErrorIs(err, fs.ErrNotExist), path)
	}
}

// sbin requires a program in a directory that an account's PATH may not contain.
func sbin(name string) testutil.Requirement {
	return testutil.Requirement{Name: "program:" + name, Check: func() error {
		for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/sbin", "/sbin") {
			if err := unix.Access(filepath.Join(dir, name), unix.X_OK); err == nil {
				return nil
			}
		}
		return fmt.Errorf("%s: %w", name, syscall.ENOENT)
	}}
}

// TestFollow checks that follow prints additions to an account's file without control characters.
func TestFollow(t *testing.T) {
	t.Parallel()
	testutil.Require(t, testutil.Root, testutil.Program("setpriv"), testutil.Program("setsid"), testutil.Program("stdbuf"))
	s := newStage(t)
	s.writeAsAttacker("progress", "ok one\n\x1b]0;title\aok two\n")
	assert.NilError(t, os.Symlink(s.secret, filepath.Join(s.attacker, "link")))
	out, err := s.run(`true & follow nobody "$1/progress" $! 20; follow nobody "$1/link" $! 2 || true`, s.attacker)
	assert.NilError(t, err)
	assert.Check(t, is.Equal(strings.TrimSpace(out), "ok one\n]0;titleok two"))
}
