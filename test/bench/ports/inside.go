package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// command is a request of the measuring side: hello, set, delete, clear, start, await (until Port ports are open), rss.
type command struct {
	Do   string `json:"do"`
	Name string `json:"name,omitempty"`
	Port int    `json:"port,omitempty"`
}

// answer has the time at which the request was done. Both sides have the same clock.
type answer struct {
	Nanos int64  `json:"nanos"`
	KB    int    `json:"kb,omitempty"`
	Error string `json:"error,omitempty"`
}

func (a answer) at() time.Time { return time.Unix(0, a.Nanos) }

// inside is the role in the namespaces. It runs the fake API server, and the forwarder in a separate process.
func inside(in io.Reader, out io.Writer) error {
	api, err := newFakeAPI()
	if err != nil {
		return err
	}
	defer api.close()
	r := &insideRole{api: api}
	r.changed = sync.NewCond(&r.mu)
	enc := json.NewEncoder(out)
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return err
		}
		a, err := r.do(c)
		if err != nil {
			a.Error = err.Error()
		}
		if err := enc.Encode(a); err != nil {
			return err
		}
	}
	return errors.Join(lines.Err(), r.stop())
}

type insideRole struct {
	api  *fakeAPI
	cmd  *exec.Cmd
	done sync.WaitGroup

	mu      sync.Mutex
	changed *sync.Cond
	open    int
	openAt  int64
	ended   bool
}

func (r *insideRole) do(c command) (answer, error) {
	now := func() answer { return answer{Nanos: time.Now().UnixNano()} }
	switch c.Do {
	case "hello":
		return now(), nil
	case "set":
		return answer{Nanos: r.api.set(c.Name, c.Port)}, nil
	case "delete":
		return answer{Nanos: r.api.remove(c.Name)}, nil
	case "clear":
		r.api.clear()
		return now(), nil
	case "start":
		return now(), r.start()
	case "await":
		return r.await(c.Port)
	case "rss":
		kb, err := residentKB(r.cmd.Process.Pid)
		return answer{KB: kb}, err
	}
	return answer{}, fmt.Errorf("unknown request %q", c.Do)
}

func (r *insideRole) start() error {
	kubeconfig := filepath.Join(os.TempDir(), fmt.Sprintf("ports-%d.kubeconfig", os.Getpid()))
	if err := os.WriteFile(kubeconfig, r.api.kubeconfig(), 0o600); err != nil {
		return err
	}
	r.cmd = exec.Command("/proc/self/exe", roleForwarder, kubeconfig, filepath.Join(os.Getenv(envStateDir), "api.sock"))
	r.cmd.Stderr = os.Stderr
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := r.cmd.Start(); err != nil {
		return err
	}
	r.done.Go(func() {
		defer func() { _ = os.Remove(kubeconfig) }() // an error does not matter: the whole directory is removed
		for lines := bufio.NewScanner(out); lines.Scan(); {
			n, err := strconv.Atoi(lines.Text())
			if err != nil {
				continue
			}
			r.mu.Lock()
			r.open, r.openAt = n, time.Now().UnixNano()
			r.changed.Broadcast()
			r.mu.Unlock()
		}
		r.mu.Lock()
		r.ended = true
		r.changed.Broadcast()
		r.mu.Unlock()
	})
	return nil
}

func (r *insideRole) await(n int) (answer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.open != n && !r.ended {
		r.changed.Wait()
	}
	if r.open != n {
		return answer{}, fmt.Errorf("the forwarder ended with %d ports open", r.open)
	}
	return answer{Nanos: r.openAt}, nil
}

func (r *insideRole) stop() error {
	if r.cmd == nil {
		return nil
	}
	err := r.cmd.Process.Signal(os.Interrupt)
	r.done.Wait()
	return errors.Join(err, r.cmd.Wait())
}

// residentKB returns the resident memory of a process, see proc_pid_status(5).
func residentKB(pid int) (int, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(raw)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			return strconv.Atoi(strings.Fields(rest)[0])
		}
	}
	return 0, errors.New("no VmRSS")
}
