package login

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"
)

const envHelper = "LOGIN_TEST_HELPER"

// inherited prints what a program gets from this process.
const inherited = `umask; pwd; for l in n f c s; do echo "$l $(ulimit -S -$l) $(ulimit -H -$l)"; done
grep -E '^Sig(Blk|Ign)' /proc/self/status; echo nice $(nice); echo oom $(cat /proc/self/oom_score_adj); setarch --show 2>/dev/null; env`

func TestMain(m *testing.M) {
	if os.Getenv(envHelper) == "" {
		os.Exit(m.Run())
	}
	runtime.LockOSThread()
	signal.Notify(make(chan os.Signal, 1), syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP) // as the parent does
	for _, fault := range Reset() {
		fmt.Println("fault:", fault)
	}
	cmd := exec.Command("sh", "-c", inherited)
	cmd.Env = Environment(os.Environ())
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		fmt.Println(err)
	}
}

// TestReset starts a process from a hostile login, and checks the attributes of the programs that it starts.
func TestReset(t *testing.T) {
	dir, err := os.MkdirTemp("", "login")
	assert.NilError(t, err)
	exe, err := os.Executable()
	assert.NilError(t, err)
	score, err := os.ReadFile(oomScoreFile)
	assert.NilError(t, err)
	login := `umask 077; cd "$1"; rmdir "$1"; ulimit -S -n 256; ulimit -S -f 100000; ulimit -S -c 0; ulimit -S -s 1024
trap '' PIPE HUP INT USR1 TERM CHLD; echo 900 >/proc/self/oom_score_adj; exec nice -n 5 "$2"`
	cmd := exec.Command("sh", "-c", login, "sh", dir, exe)
	cmd.Env = append(os.Environ(), envHelper+"=1", "LD_PRELOAD=", "GODEBUG=x=1", "LC_ALL=xx_XX", "LANG=xx_XX", "TMPDIR=/nonexistent", "ETCD_NAME=x",
		"HTTPS_PROXY=http://p:1", "ROOTLESSNODE_NAME=x")
	runtime.LockOSThread() // never unlocked, because the thread blocks signals
	var blocked unix.Sigset_t
	blocked.Val[0] = 1<<(unix.SIGTERM-1) | 1<<(unix.SIGUSR1-1) | 1<<(unix.SIGCHLD-1)
	assert.NilError(t, unix.PthreadSigmask(unix.SIG_SETMASK, &blocked, nil))
	out, err := cmd.CombinedOutput()
	assert.NilError(t, err, "%s", out)
	t.Logf("%s", out)
	got := map[string]string{}
	for line := range strings.Lines(string(out)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if k, v, isVariable := strings.Cut(key, "="); isVariable {
			key, value = k, v
		}
		got[key] = strings.TrimSpace(value)
	}
	for _, line := range []string{"0022", "/"} {
		_, printed := got[line]
		assert.Check(t, printed, line)
	}
	for limit, most := range map[string]string{"n": fmt.Sprint(noFileMax), "s": fmt.Sprint(stackMax / 1024)} {
		soft, hard, _ := strings.Cut(got[limit], " ")
		assert.Check(t, soft == hard || soft == most, "limit %s: %s", limit, got[limit])
	}
	for _, limit := range []string{"f", "c"} {
		soft, hard, _ := strings.Cut(got[limit], " ")
		assert.Check(t, cmp.Equal(soft, hard), "limit %s", limit)
	}
	for _, line := range strings.Split(strings.TrimSpace(string(out)), "\n") {
		if strings.HasPrefix(line, "Sig") {
			assert.Check(t, strings.HasSuffix(line, "\t0000000000000000"), line)
		}
	}
	assert.Check(t, got["nice"] == "0" || strings.Contains(string(out), "fault: the node keeps the nice value of the login: nice 5"), got["nice"])
	assert.Check(t, cmp.Equal(got["oom"], strings.TrimSpace(string(score))))
	assert.Check(t, cmp.Equal(got["LANG"], "C.UTF-8"))
	assert.Check(t, cmp.Equal(got["HTTPS_PROXY"], "http://p:1"))
	assert.Check(t, cmp.Equal(got["ROOTLESSNODE_NAME"], "x"))
	for _, key := range []string{"LD_PRELOAD", "GODEBUG", "LC_ALL", "TMPDIR", "ETCD_NAME"} {
		_, passed := got[key]
		assert.Check(t, !passed, key)
	}
}
