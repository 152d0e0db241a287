package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rootlessnode/rootlessnode/pkg/mountns"
)

// sample is one churn, as seen by the host.
type sample struct {
	Standing    int                 `json:"standing"`
	Propagation mountns.Propagation `json:"propagation"`
	Changes     int                 `json:"changes"`
	// Woken is the number of events, Bytes the number of bytes that the watcher read, and CPU its processor time in seconds.
	Woken int     `json:"woken"`
	Bytes int     `json:"bytes"`
	CPU   float64 `json:"cpu"`
	// Seconds is the duration of the system calls of the churn, without pauses.
	Seconds float64 `json:"seconds"`
}

// pair measures hidden and visible. Their order alternates from pair to pair.
func (o *options) pair(dir string, standing int, swap bool) ([]sample, error) {
	kinds := []mountns.Propagation{mountns.Slave, mountns.Shared}
	if swap {
		kinds[0], kinds[1] = kinds[1], kinds[0]
	}
	var all []sample
	for _, kind := range kinds {
		s, err := o.round(filepath.Join(dir, string(kind)), standing, kind)
		if err != nil {
			return nil, fmt.Errorf("%s, %d standing: %w", kind, standing, err)
		}
		all = append(all, s)
	}
	return all, nil
}

func (o *options) round(dir string, standing int, kind mountns.Propagation) (s sample, err error) {
	store := mountns.New(mountns.Options{Dir: filepath.Join(dir, "pins"), Paths: []string{"/"}})
	created, err := store.Create(mountns.Spec{Name: "bench", Propagation: kind})
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, store.Delete("bench", false)) }()
	c, err := startChurn(dir, created.Pin, standing, o)
	if err != nil {
		return s, err
	}
	w, err := startWatcher()
	if err != nil {
		return s, errors.Join(err, c.end())
	}
	seconds, err := c.once()
	seen := w.stop()
	if err = errors.Join(err, seen.err, c.end()); err != nil {
		return s, err
	}
	return sample{standing, kind, 2 * o.churn, seen.woken, seen.bytes, seen.cpu, seconds}, nil
}

// churner is the program inside. It reports when the standing mounts exist, starts a churn for each input line, reports its duration, and
// removes the mounts when its standard input is closed.
type churner struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func startChurn(dir, pin string, standing int, o *options) (*churner, error) {
	c := &churner{cmd: exec.Command("/proc/self/exe", roleChurn, dir, pin, strconv.Itoa(standing), strconv.Itoa(o.churn), o.pause.String())}
	c.cmd.Stderr = os.Stderr
	var err error
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = bufio.NewReader(out)
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	if _, err := c.line(); err != nil {
		return nil, errors.Join(err, c.end())
	}
	return c, nil
}

func (c *churner) line() (string, error) {
	text, err := c.out.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("the program inside has ended: %w", err)
	}
	return strings.TrimSpace(text), nil
}

// once runs one churn.
func (c *churner) once() (float64, error) {
	if _, err := io.WriteString(c.in, "\n"); err != nil {
		return 0, err
	}
	text, err := c.line()
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(text, 64)
}

func (c *churner) end() error { return errors.Join(c.in.Close(), c.cmd.Wait()) }

// inside is the environment variable that is set for an execution of the churn role inside the namespace.
const inside = "BENCH_MOUNTS_INSIDE"

// churn is the role of the program inside: DIR PIN STANDING CHURN PAUSE.
func churn(args []string) error {
	if os.Getenv(inside) == "" {
		return mountns.New(mountns.Options{}).Exec(mountns.ExecOptions{
			Pin: args[1], Argv: append([]string{"/proc/self/exe", roleChurn}, args...), Env: append(os.Environ(), inside+"=1"),
		})
	}
	standing, err1 := strconv.Atoi(args[2])
	changes, err2 := strconv.Atoi(args[3])
	pause, err3 := time.ParseDuration(args[4])
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	var paths []string
	for i := range standing {
		path := filepath.Join(args[0], fmt.Sprintf("standing-%d", i))
		if err := mountTmpfs(path); err != nil {
			return err
		}
		paths = append(paths, path)
	}
	fmt.Println("ready")
	in := bufio.NewReader(os.Stdin)
	if _, err := in.ReadString('\n'); err != nil {
		return err
	}
	took, err := turnOver(filepath.Join(args[0], "volume"), changes, pause)
	if err != nil {
		return err
	}
	fmt.Println(took.Seconds())
	_, _ = io.Copy(io.Discard, in)
	var errs []error
	for _, path := range paths {
		errs = append(errs, unix.Unmount(path, 0))
	}
	return errors.Join(errs...)
}

func mountTmpfs(path string) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	if err := unix.Mount("none", path, "tmpfs", 0, "size=4k"); err != nil {
		return fmt.Errorf("mount %s: %w", path, err)
	}
	return nil
}

// turnOver mounts and unmounts, and returns the duration without the pauses.
func turnOver(path string, times int, pause time.Duration) (took time.Duration, err error) {
	for range times {
		for _, change := range []func() error{func() error { return mountTmpfs(path) }, func() error { return unix.Unmount(path, 0) }} {
			t0 := time.Now()
			if err := change(); err != nil {
				return 0, err
			}
			took += time.Since(t0)
			time.Sleep(pause)
		}
	}
	return took, nil
}
