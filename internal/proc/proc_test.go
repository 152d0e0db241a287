package proc

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
)

const rest = " -1 0 0 0 0 0 41 42 0 0 20 0 3 0 5 1000 77 18446744073709551615"

func TestParseStat(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Stat{
		"12 (sh) S 1 10 9 34816":          {PID: 12, Name: "sh", State: 'S', Parent: 1, Group: 10, Session: 9, TTY: 34816},
		"12 (a) b) (c)) R 7 10 9 0":       {PID: 12, Name: "a) b) (c)", State: 'R', Parent: 7, Group: 10, Session: 9},
		"12 (passt.avx2) Z 1 10 9 0":      {PID: 12, Name: "passt.avx2", State: 'Z', Parent: 1, Group: 10, Session: 9},
		"2 (kthreadd) S 0 0 0 0":          {PID: 2, Name: "kthreadd", State: 'S'},
		"12 () X 1 10 9 0":                {PID: 12, State: 'X', Parent: 1, Group: 10, Session: 9},
		"12 (new\nline) S -1 10 9 -34816": {PID: 12, Name: "new\nline", State: 'S', Parent: -1, Group: 10, Session: 9, TTY: -34816},
	} {
		want.UserTicks, want.SystemTicks, want.Threads, want.ResidentPages = 41, 42, 3, 77
		s, ok := parseStat([]byte(text + rest))
		assert.Assert(t, ok, text)
		assert.DeepEqual(t, s, want)
		assert.Equal(t, s.Alive(), want.State == 'S' || want.State == 'R', text)
	}
	for _, text := range []string{
		"", ")(", "12 (sh", "12 sh S 1 10 9 0" + rest, "12 (sh) S 1 10 9 0", "12 (sh) S x 10 9 0" + rest, "x (sh) S 1 10 9 0" + rest,
		"12 (sh) SS 1 10 9 0" + rest,
	} {
		_, ok := parseStat([]byte(text))
		assert.Assert(t, !ok, text)
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add([]byte("12 (sh) S 1 10 9 0" + rest))
	f.Add([]byte(")"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if s, ok := parseStat(data); ok && (s.State == 0 || s.State == ' ') {
			t.Fatalf("%q: %v", data, s)
		}
	})
}

func TestThisProcess(t *testing.T) {
	t.Parallel()
	self, err := Host.Self()
	assert.NilError(t, err)
	assert.Equal(t, self.PID, os.Getpid())
	assert.Equal(t, self.Parent, os.Getppid())
	assert.Equal(t, self.Group, unix.Getpgrp())
	assert.Assert(t, self.Alive() && self.Threads > 0 && self.ResidentPages > 0)
	byPID, err := Host.Stat(os.Getpid())
	assert.NilError(t, err)
	assert.Equal(t, byPID.Name, self.Name)
	name, err := Host.Name(os.Getpid())
	assert.NilError(t, err)
	assert.Equal(t, name, self.Name)
	pids, err := Host.PIDs()
	assert.NilError(t, err)
	assert.Assert(t, is.Contains(pids, os.Getpid()))
	found := false
	for s := range Host.Stats() {
		if s.PID == os.Getpid() {
			found = true
			break
		}
	}
	assert.Assert(t, found)
	assert.Equal(t, Host.SelfStatus("Pid"), fmt.Sprint(os.Getpid()))
	assert.Equal(t, Host.SelfStatus("Nothing"), "")
	assert.Assert(t, Exists(os.Getpid()))
}

func TestNoProcFileSystem(t *testing.T) {
	t.Parallel()
	nowhere := FS(filepath.Join(t.TempDir(), "proc"))
	_, err := nowhere.PIDs()
	assert.ErrorIs(t, err, fs.ErrNotExist)
	assert.Equal(t, len(slices.Collect(nowhere.Stats())), 0)
	assert.Equal(t, nowhere.SelfStatus("Pid"), "")
}

// TestHandleOfEndedProcess checks that a handle never signals another process, also not after the process was reaped and its ID may have
// been reused.
func TestHandleOfEndedProcess(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("cat")
	in, err := cmd.StdinPipe()
	assert.NilError(t, err)
	assert.NilError(t, cmd.Start())
	h, err := Open(cmd.Process.Pid)
	assert.NilError(t, err)
	defer h.Close()
	assert.NilError(t, h.Signal(0))
	assert.NilError(t, h.Signal(unix.SIGTERM))
	assert.ErrorContains(t, cmd.Wait(), "signal: terminated")
	assert.NilError(t, h.Signal(unix.SIGKILL), "reaped")
	_ = in.Close()
	_, err = Open(1 << 30)
	assert.Assert(t, err != nil && !Exists(1<<30))
	_, err = Host.Stat(1 << 30)
	assert.Assert(t, Ended(err))
}

func TestOpeners(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	f, err := os.Create(path)
	assert.NilError(t, err)
	link := path + ".link"
	assert.NilError(t, os.Symlink(path, link))
	assert.DeepEqual(t, Host.Openers(link), []int{os.Getpid()})
	assert.NilError(t, f.Close())
	assert.Equal(t, len(Host.Openers(path)), 0)
	assert.Equal(t, len(Host.Openers(path+".none")), 0)
}
