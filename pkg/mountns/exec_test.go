package mountns

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/proc"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// limit is a generous timeout.
const limit = 30 * time.Second

// TestExecKeepsTheProcess checks that everything that a service manager prepares also works for the program: pid, arguments,
// environment, working directory, the notify socket, listening descriptors, standard streams.
func TestExecKeepsTheProcess(t *testing.T) {
	onHost(t, sharedHost, func(t *testing.T, s *Store) {
		c, err := s.Create(Spec{Name: DefaultName})
		assert.NilError(t, err)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		assert.NilError(t, err)
		defer l.Close()
		listening, err := l.(*net.TCPListener).File()
		assert.NilError(t, err)
		defer listening.Close()

		script := `echo $$; readlink /proc/self/ns/mnt /proc/self/fd/3; pwd -P; echo "$0|$1|$2|$NOTIFY_SOCKET|$LISTEN_FDS|$ODD"; cat; ulimit -n; cat /proc/self/oom_score_adj`
		cmd := helperCommand(t, s, "exec", []string{"NS=" + DefaultName, "NOTIFY_SOCKET=/run/n", "LISTEN_FDS=1", "ODD=a b\n$c%d", "PWD=/"},
			"sh", "-c", script, "zero", "one  two", "")
		cmd.Dir = filepath.Dir(s.dir)
		cmd.ExtraFiles = []*os.File{listening}
		cmd.Stdin = strings.NewReader("input\n")
		var out strings.Builder
		cmd.Stdout, cmd.Stderr = &out, os.Stderr
		assert.NilError(t, cmd.Start())
		pid := cmd.Process.Pid
		assert.NilError(t, cmd.Wait())
		fd3, err := os.Readlink(proc.FDPath(listening))
		assert.NilError(t, err)
		limit := run(t, "sh", "-c", "ulimit -n")
		oom := run(t, "cat", "/proc/self/oom_score_adj")
		want := []string{itoa(pid), c.ID, fd3, cmd.Dir, "zero|one  two||/run/n|1|a b", "$c%d", "input", limit, oom, ""}
		assert.DeepEqual(t, strings.Split(out.String(), "\n"), want)
	})
}

func TestExecArgv0AndPin(t *testing.T) {
	onHost(t, sharedHost, func(t *testing.T, s *Store) {
		c, err := s.Create(Spec{Name: DefaultName})
		assert.NilError(t, err)
		out, err := helperCommand(t, s, "exec", []string{"PIN=" + c.Pin, "ARGV0=-called"},
			"/bin/sh", "-c", "tr '\\0' ' ' </proc/$$/cmdline; readlink /proc/self/ns/mnt").CombinedOutput()
		assert.NilError(t, err, "%s", out)
		assert.Check(t, strings.HasPrefix(string(out), "-called -c"), "%s", out)
		assert.Check(t, is.Contains(string(out), c.ID))
		// Without name and pin, the program runs in the namespace of the process.
		out, err = helperCommand(t, s, "exec", nil, "readlink", "/proc/self/ns/mnt").CombinedOutput()
		assert.NilError(t, err, "%s", out)
		here, err := ownID()
		assert.NilError(t, err)
		equal(t, strings.TrimSpace(string(out)), here.String(), "namespace")
	})
}

// TestExecSignals checks that an ignored SIGHUP stays ignored, and that SIGPIPE is as requested.
func TestExecSignals(t *testing.T) {
	onHost(t, sharedHost, func(t *testing.T, s *Store) {
		_, err := s.Create(Spec{Name: DefaultName})
		assert.NilError(t, err)
		for pipe, want := range map[string]uint64{"": 0x0001, "1": 0x1001} { // bits of HUP 1, PIPE 13
			cmd := helperCommand(t, s, "exec", []string{"NS=" + DefaultName, "PIPE=" + pipe}, "grep", "SigIgn", "/proc/self/status")
			cmd.Args = append([]string{"sh", "-c", `trap '' HUP; exe=$1; shift; exec "$exe" "$@"`, "sh", ownCopy(t)}, cmd.Args[1:]...)
			cmd.Path = "/bin/sh"
			out, err := cmd.CombinedOutput()
			assert.NilError(t, err, "%s", out)
			ignored, err := strconv.ParseUint(strings.TrimSpace(strings.TrimPrefix(string(out), "SigIgn:")), 16, 64)
			assert.NilError(t, err, "%s", out)
			equal(t, ignored&0x1001, want, "signals") // the caller of the test may ignore others
		}
	})
}

func TestExecNeverRunsElsewhere(t *testing.T) {
	onHost(t, sharedHost, func(t *testing.T, s *Store) {
		_, err := s.Create(Spec{Name: "other"})
		assert.NilError(t, err)
		ran := filepath.Join(os.Getenv(envHost), "ran")
		for _, tc := range []struct {
			env  []string
			dir  string
			want string
		}{
			{[]string{"NS=" + DefaultName}, "/", "mount namespace does not exist: kubens"},
			{[]string{"NS=a/b"}, "/", "invalid mount namespace name"},
			{[]string{"PIN=" + s.Pin("no")}, "/", "no pin at " + s.Pin("no")},
			{[]string{"PIN=/etc/passwd"}, "/", "/etc/passwd is a plain file"},
			{[]string{"PIN=/proc/self/ns/net"}, "/", "pins a namespace of another type"},
			{[]string{"PIN="}, "", ""},
		} {
			_ = os.Remove(ran)
			cmd := helperCommand(t, s, "exec", tc.env, "touch", ran)
			cmd.Dir = tc.dir
			out, err := cmd.CombinedOutput()
			_, statErr := os.Stat(ran)
			if tc.want == "" {
				assert.Check(t, err)
				assert.Check(t, statErr, "the test does not detect that the program ran")
				continue
			}
			assert.Check(t, is.ErrorContains(err, "exit status"), "%v", tc.env)
			assert.Check(t, is.Contains(string(out), tc.want))
			assert.Check(t, os.IsNotExist(statErr), "%v: it ran", tc.env)
		}
	})
}

// TestExecWorkingDirectory checks that a working directory that does not exist inside is an error.
func TestExecWorkingDirectory(t *testing.T) {
	onHost(t, sharedHost, func(t *testing.T, s *Store) {
		_, err := s.Create(Spec{Name: DefaultName, Propagation: Private})
		assert.NilError(t, err)
		later := tmpfs(t, "later")
		assert.NilError(t, os.Mkdir(later+"/dir", 0o755))
		cmd := helperCommand(t, s, "exec", []string{"NS=" + DefaultName}, "pwd")
		cmd.Dir = later + "/dir"
		out, err := cmd.CombinedOutput()
		assert.Check(t, is.ErrorContains(err, "exit status 1"))
		assert.Check(t, is.Contains(string(out), "the working directory "+cmd.Dir+" does not exist inside"))
	})
}

// TestExecNotifies checks that a program started through Exec can connect to the notify socket.
func TestExecNotifies(t *testing.T) {
	onHost(t, sharedHost, func(t *testing.T, s *Store) {
		_, err := s.Create(Spec{Name: DefaultName})
		assert.NilError(t, err)
		path := filepath.Join(os.Getenv(envHost), "sock")
		l, err := net.Listen("unix", path)
		assert.NilError(t, err)
		defer l.Close()
		cmd := helperCommand(t, s, "exec", []string{"NS=" + DefaultName}, "/usr/bin/env", envHelper+"=notify", "NOTIFY_SOCKET="+path, ownCopy(t))
		cmd.Stderr = os.Stderr
		assert.NilError(t, cmd.Start())
		assert.NilError(t, l.(*net.UnixListener).SetDeadline(time.Now().Add(limit)))
		conn, err := l.Accept()
		assert.NilError(t, err, "wait for the program's message")
		line, err := bufio.NewReader(conn).ReadString('\n')
		assert.NilError(t, err)
		_ = conn.Close()
		assert.NilError(t, cmd.Wait())
		equal(t, line, "READY=1 "+itoa(cmd.Process.Pid)+"\n", "message")
	})
}

func TestStartErrors(t *testing.T) {
	t.Parallel()
	for program, code := range map[string]int{"no-such-program": 127, "/no/such/program": 127, "/etc/passwd": 126, "/": 126} {
		err := New(Options{}).Exec(ExecOptions{Argv: []string{program}})
		var start *StartError
		assert.Check(t, asStart(err, &start), program)
		equal(t, start.Code, code, program)
		assert.Check(t, is.Contains(err.Error(), "execute "+program+": "))
		equal(t, errdefs.ExitCode(err), errdefs.ExitOther, program)
	}
}

func TestExecSearchesInside(t *testing.T) {
	onHost(t, sharedHost, func(t *testing.T, s *Store) {
		_, err := s.Create(Spec{Name: DefaultName})
		assert.NilError(t, err)
		dir := filepath.Join(os.Getenv(envHost), "bin")
		assert.NilError(t, os.Mkdir(dir, 0o755))
		execIn(t, s, DefaultName, "mount", "-t", "tmpfs", "none", dir)
		sh, err := exec.LookPath("sh")
		assert.NilError(t, err)
		execIn(t, s, DefaultName, "cp", sh, dir+"/only-inside")
		out, err := helperCommand(t, s, "exec", []string{"NS=" + DefaultName, "PATH=" + dir + ":" + os.Getenv("PATH")}, "only-inside", "-c", "echo found").CombinedOutput()
		assert.NilError(t, err, "%s", out)
		equal(t, string(out), "found\n", "output")
	})
}
