package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
)

// bareSide is the bare script under RootlessKit's command line, in a delegated cgroup that is prepared for it.
type bareSide struct {
	b    *bench
	data string

	cmd    *exec.Cmd
	ended  chan struct{}
	cgroup string
}

func (s *bareSide) name() string     { return "bare script" }
func (s *bareSide) stateDir() string { return filepath.Join(s.b.work, "rk") }

// roleClaim is the role of this program that gets a delegated cgroup and then executes a command: `bench claim NAME CMD…`.
const roleClaim = "claim"

// claim enters a new delegated cgroup, prints its path, waits for a byte and executes the command. It is not part of a measurement.
func claim(args []string) error {
	host, err := cgroupv2.DetectHost(cgroupv2.Options{})
	if err != nil {
		return err
	}
	d, err := cgroupv2.Detect(host, cgroupv2.Options{})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), claimLimit)
	defer cancel()
	tree, err := cgroupv2.Claim(ctx, d, args[0], cgroupv2.Options{})
	if err != nil {
		return err
	}
	fmt.Println(tree.Path())
	if _, err := os.Stdin.Read(make([]byte, 1)); err != nil {
		return fmt.Errorf("wait for the start: %w", err)
	}
	return syscall.Exec(args[1], args[1:], os.Environ())
}

const claimLimit = 20 * time.Second

// reset resets the data dir to that of a node that has its images and certificates, but no cluster.
func (s *bareSide) reset(ctx context.Context) error {
	if err := s.b.resetData(ctx, s.data); err != nil {
		return err
	}
	return copyDir(filepath.Join(s.b.setup.dir, "kubernetes"), filepath.Join(s.data, "kubernetes"))
}

// rootlesskit returns the command line that creates the same namespaces as rootlessnode's parent.
func (s *bareSide) rootlesskit(script ...string) []string {
	cfg, h := s.b.setup.cfg, s.b.setup.handover
	args := []string{
		s.b.rootlesskit, "--state-dir=" + s.stateDir(), "--net=" + h.Network.Driver, fmt.Sprintf("--mtu=%d", h.Network.MTU),
		"--cidr=" + cfg.Network.CIDR, "--port-driver=builtin", "--propagation=" + cfg.Mounts.Propagation,
		"--pidns", "--cgroupns", "--utsns", "--ipcns", "--evacuate-cgroup2=rootlesskit",
		fmt.Sprintf("--publish=127.0.0.1:%d:%s:%d/tcp", s.b.port, h.Network.IP, cfg.Inside.APIServerPort),
	}
	if !cfg.Network.AllowHostLoopback {
		args = append(args, "--disable-host-loopback")
	}
	for _, dir := range cfg.Mounts.CopyUp {
		args = append(args, "--copy-up="+dir)
	}
	return append(append(args, "bash", s.b.script), script...)
}

func (s *bareSide) launch(ctx context.Context) (*launch, error) {
	l, err := s.script(ctx, "start", s.b.setup.dir, s.data)
	if err != nil {
		return nil, err
	}
	l.pki = filepath.Join(s.data, "kubernetes", "pki")
	return l, nil
}

// script starts the script and returns once it runs.
func (s *bareSide) script(ctx context.Context, args ...string) (*launch, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(s.stateDir(), 0o700); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(s.b.work, "bare.log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	s.cmd = exec.Command(exe, append([]string{roleClaim, "bench-bare"}, s.rootlesskit(args...)...)...)
	s.cmd.Stderr = log
	in, err := s.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	s.cmd.Stdout = w
	err = s.cmd.Start()
	_ = w.Close()
	if err != nil {
		return nil, errors.Join(err, out.Close())
	}
	s.ended = make(chan struct{})
	go func(cmd *exec.Cmd, ended chan struct{}) {
		defer close(ended)
		_ = cmd.Wait() // it may have ended by a signal
	}(s.cmd, s.ended)
	lines := bufio.NewScanner(out)
	if !lines.Scan() {
		return nil, fmt.Errorf("claim a cgroup for the bare script: %s", oneLine(log.Name()))
	}
	s.cgroup = lines.Text()
	done := make(chan selfReport, 1)
	l := &launch{t0: time.Now(), pidFile: filepath.Join(s.stateDir(), "child_pid"), reported: done}
	if _, err := io.WriteString(in, "\n"); err != nil {
		return nil, err
	}
	go func() {
		done <- follow(lines, l.t0, log.Name())
		_, _ = io.Copy(io.Discard, out) // until the script has ended
		_ = out.Close()
	}()
	return l, nil
}

// follow reads the output of the script, one line for each component, until it is ready.
func follow(lines *bufio.Scanner, t0 time.Time, log string) selfReport {
	t := selfReport{marks: map[string]float64{}}
	for lines.Scan() {
		t.at = time.Now()
		t.marks[lines.Text()] = t.at.Sub(t0).Seconds()
		if lines.Text() == "ready" {
			return t
		}
	}
	t.err = fmt.Errorf("the bare script ended: %s", tail(log))
	return t
}

// tail returns the end of a log.
func tail(path string) string {
	const keep = 2000
	s := oneLine(path)
	return s[max(0, len(s)-keep):]
}

// stop stops the script, and kills it if it does not stop in time.
func (s *bareSide) stop(ctx context.Context) error {
	if s.cmd == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.b.limit)
	defer cancel()
	_ = s.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	var errs []error
	select {
	case <-s.ended:
	case <-ctx.Done():
		errs = append(errs, errors.New("the bare script did not stop in time and was killed"), s.cmd.Process.Kill())
		<-s.ended
	}
	s.cmd = nil
	if s.cgroup != "" {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), claimLimit)
		defer cancel()
		errs = append(errs, cgroupv2.RemoveTree(clean, s.cgroup))
		if _, err := os.Stat(s.cgroup); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("the bare script left %s", s.cgroup))
		}
	}
	return errors.Join(append(errs, os.RemoveAll(s.stateDir()))...)
}

// prepareStore imports the node's images into a containerd root, which becomes the template for both sides.
func (s *bareSide) prepareStore(ctx context.Context) error {
	if err := os.MkdirAll(s.data, 0o700); err != nil {
		return err
	}
	archives, err := filepath.Glob(filepath.Join(s.b.setup.cfg.ComponentsDir, "../../share/rootlessnode/images/*.tar"))
	if err != nil || len(archives) == 0 {
		return fmt.Errorf("find the image archives: %w", errors.Join(err, fs.ErrNotExist))
	}
	l, err := s.script(ctx, append([]string{"store", s.b.setup.dir, s.data}, archives...)...)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, s.b.limit)
	defer cancel()
	_, err = l.wait(limited)
	if err := errors.Join(err, s.stop(context.WithoutCancel(ctx))); err != nil {
		return err
	}
	return os.Rename(filepath.Join(s.data, "containerd"), s.b.store())
}

func (b *bench) store() string { return filepath.Join(b.work, "store") }

// resetData removes the files of a data dir except for keep, and adds a copy of the image store.
func (b *bench) resetData(ctx context.Context, dir string, keep ...string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var remove []string
	for _, e := range entries {
		if !slices.Contains(keep, e.Name()) {
			remove = append(remove, filepath.Join(dir, e.Name()))
		}
	}
	// In a user namespace, because files of images and pods are owned by subordinate ids.
	for _, argv := range [][]string{
		append([]string{"rm", "-rf"}, remove...), {"cp", "-a", b.store(), filepath.Join(dir, filepath.Base(layout.InsideContainerdRoot))},
	} {
		if out, err := exec.CommandContext(ctx, b.rootlesskit, argv...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", strings.Join(argv[:2], " "), err, strings.TrimSpace(string(out)))
		}
	}
	return nil
}
