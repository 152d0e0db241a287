package preflight

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/hostinfo"
	"github.com/rootlessnode/rootlessnode/internal/proc"
)

// programTimeout limits the run time of each program that a check executes. Normally they need milliseconds.
const programTimeout = 3 * time.Second

// host is an Input with values that several checks use and that are computed once.
type host struct {
	in     Input
	cfg    *config.NodeConfig
	probes Probes

	account func() (hostinfo.Account, bool, error)
	distro  func() hostinfo.Distro
	tried   func(context.Context) tried
}

func newHost(ctx context.Context, in Input) *host {
	h := &host{in: in, cfg: in.Config, probes: in.Probes.orReal()}
	if h.cfg == nil {
		h.cfg = config.Default()
	}
	type result struct {
		a   hostinfo.Account
		ok  bool
		err error
	}
	find := sync.OnceValue(func() result {
		a, ok, err := hostinfo.Lookup(ctx, in.Root, strconv.Itoa(in.UID), h.lookPath("getent"))
		return result{a, ok, err}
	})
	h.account = func() (hostinfo.Account, bool, error) { r := find(); return r.a, r.ok, r.err }
	var once sync.Once
	var done tried
	h.tried = func(ctx context.Context) tried {
		once.Do(func() { done = h.try(ctx) })
		return done
	}
	h.distro = sync.OnceValue(func() hostinfo.Distro { return hostinfo.DetectDistro(in.Root) })
	return h
}

// path returns the path of a file of the host, below Root.
func (h *host) path(p string) string { return filepath.Join(h.in.Root, p) }

func (h *host) exists(p string) bool {
	_, err := os.Stat(h.path(p))
	return err == nil
}

// readInt reads a file that contains one number, such as those below /proc/sys.
func (h *host) readInt(p string) (int64, error) {
	b, err := os.ReadFile(h.path(p))
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}

func (h *host) proc() proc.FS { return proc.FS(h.path("/proc")) }

func (h *host) env(key string) string { return getenv(h.in.Env, key) }

func getenv(env []string, key string) string {
	for i := len(env) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(env[i], key+"="); ok {
			return v
		}
	}
	return ""
}

// lookPath returns the path of a program on the PATH of Input.Env, or "" if it is not found. Without Input.Root it also
// searches the sbin directories, as the node does.
func (h *host) lookPath(program string) string {
	dirs := filepath.SplitList(h.env("PATH"))
	if h.in.Root == "" {
		dirs = append(dirs, hostinfo.SbinDirs()...)
	}
	return hostinfo.FindProgram(program, dirs...)
}

// run runs a program and returns its standard output. The error is the last line of its standard error, if it has any.
func (h *host) run(ctx context.Context, path string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, programTimeout)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr, cmd.WaitDelay = h.in.Env, &stdout, &stderr, programTimeout
	err := cmd.Run()
	if err != nil && ctx.Err() != nil {
		return nil, errors.New("timed out after " + programTimeout.String())
	}
	text := bytes.TrimSpace(stderr.Bytes())
	return stdout.Bytes(), proc.Failure(err, text[bytes.LastIndexByte(text, '\n')+1:])
}
