// Command ports measures how fast the host's ports follow Services. It runs a fake API server and rootlessnode's forwarder inside
// RootlessKit's namespaces with the port driver of a node, and measures outside. It needs no node, root or cgroup, only an account that may
// create user namespaces. With -rootlesskit it measures RootlessKit's command line with its own driver.
//
//	ports [-rootlesskit PATH] [-services 2000] [-samples 200] [-rate 200] [-churn 1m]
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// Roles of this program except for the measuring one.
const (
	roleKit       = "kit"
	roleInside    = "inside"
	roleForwarder = "forwarder"
)

// firstPort is the first used node port. Ports of samples and churn come after those of the initial Services.
const firstPort = 30000

type options struct {
	rootlesskit             string
	services, samples, rate int
	churn                   time.Duration
}

func main() {
	var err error
	switch {
	case os.Getenv(layout.EnvPipeFD) != "":
		err = kitChild()
	case len(os.Args) > 2 && os.Args[1] == roleKit:
		err = kitParent(os.Args[2])
	case len(os.Args) > 1 && os.Args[1] == roleInside:
		err = inside(os.Stdin, os.Stdout)
	case len(os.Args) > 3 && os.Args[1] == roleForwarder:
		err = forwarder(os.Args[2], os.Args[3])
	default:
		err = measure()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func measure() error {
	var o options
	flag.StringVar(&o.rootlesskit, "rootlesskit", "", "measure RootlessKit's command line with its own port driver")
	flag.IntVar(&o.services, "services", 2000, "Services with a node port at the start, at most 2500")
	flag.IntVar(&o.samples, "samples", 200, "number of Services that are created and deleted one after the other")
	flag.IntVar(&o.rate, "rate", 200, "changes per second")
	flag.DurationVar(&o.churn, "churn", time.Minute, "duration of the changes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	b, err := begin(ctx, o)
	if err != nil {
		return err
	}
	return errors.Join(b.run(), b.end())
}

// bench is the measuring side of one run.
type bench struct {
	options
	dir string
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Scanner
}

func begin(ctx context.Context, o options) (*bench, error) {
	dir, err := os.MkdirTemp("", "ports")
	if err != nil {
		return nil, err
	}
	b := &bench{options: o, dir: dir}
	if b.cmd, err = o.kit(ctx, filepath.Join(dir, "rk")); err != nil {
		return nil, err
	}
	b.cmd.Cancel = func() error { return b.cmd.Process.Signal(syscall.SIGTERM) }
	b.cmd.WaitDelay = time.Minute
	b.cmd.Stderr = os.Stderr
	if b.in, err = b.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := b.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	b.out = bufio.NewScanner(out)
	return b, b.cmd.Start()
}

func (b *bench) end() error { return errors.Join(b.in.Close(), b.cmd.Wait(), os.RemoveAll(b.dir)) }

// ask sends a command to the inside role and returns the answer.
func (b *bench) ask(c command) (answer, error) {
	raw, err := json.Marshal(c)
	if err != nil {
		return answer{}, err
	}
	if _, err := b.in.Write(append(raw, '\n')); err != nil {
		return answer{}, err
	}
	if !b.out.Scan() {
		return answer{}, errors.Join(fmt.Errorf("%s: no answer from inside", c.Do), b.out.Err())
	}
	var a answer
	if err := json.Unmarshal(b.out.Bytes(), &a); err != nil {
		return answer{}, err
	}
	if a.Error != "" {
		return a, fmt.Errorf("%s: %s", c.Do, a.Error)
	}
	return a, nil
}

func (b *bench) run() error {
	if _, err := b.ask(command{Do: "hello"}); err != nil { // wait for the namespaces
		return err
	}
	before := b.descriptors()
	for i := range b.services {
		if _, err := b.ask(command{Do: "set", Name: fmt.Sprintf("s%04d", i), Port: firstPort + i}); err != nil {
			return err
		}
	}
	began := time.Now()
	if _, err := b.ask(command{Do: "start"}); err != nil {
		return err
	}
	opened, err := b.ask(command{Do: "await", Port: b.services})
	if err != nil {
		return err
	}
	fmt.Printf("%d node ports open after start: %s (target 3 s)\n", b.services, opened.at().Sub(began).Round(time.Millisecond))
	if err := b.latency(); err != nil {
		return err
	}
	if err := b.change(); err != nil {
		return err
	}
	end, err := b.ask(command{Do: "rss"})
	if err != nil {
		return err
	}
	fmt.Printf("resident memory of the forwarder: %.1f MB (target 64)\n", float64(end.KB)/1024)
	if _, err := b.ask(command{Do: "clear"}); err != nil {
		return err
	}
	if _, err := b.ask(command{Do: "await", Port: 0}); err != nil {
		return err
	}
	closed := time.Now()
	after := b.descriptors()
	for after > before && time.Since(closed) < drain {
		time.Sleep(time.Second)
		after = b.descriptors()
	}
	fmt.Printf("descriptors of RootlessKit's parent: %d before, %d after (%s after the last port closed)\n", before, after,
		time.Since(closed).Round(time.Second))
	return nil
}

// drain is the time limit for descriptors to be closed: the driver keeps connections for a while that are not answered inside, which are all
// in this benchmark, and RootlessKit's API keeps idle connections.
const drain = time.Minute

func (b *bench) descriptors() int {
	list, err := os.ReadDir("/proc/" + strconv.Itoa(b.cmd.Process.Pid) + "/fd")
	if err != nil {
		return -1
	}
	return len(list)
}

// latency creates and deletes Services one by one. Each has another port, so that a port that is still open does not distort the result.
func (b *bench) latency() error {
	var up, down []time.Duration
	for i := range b.samples {
		port := firstPort + b.services + i%200
		for _, c := range []command{{Do: "set", Name: "sample", Port: port}, {Do: "delete", Name: "sample"}} {
			a, err := b.ask(c)
			if err != nil {
				return err
			}
			took, err := becomes(port, c.Do == "set", a.at())
			if err != nil {
				return err
			}
			if c.Do == "set" {
				up = append(up, took)
			} else {
				down = append(down, took)
			}
		}
	}
	fmt.Printf("created -> accepts: %s (targets: 20 ms, 100 ms)\n", spread(up))
	fmt.Printf("deleted -> refuses: %s (targets: 20 ms, 100 ms)\n", spread(down))
	return nil
}

// patience is the time limit for a port to be opened or closed.
const patience = 10 * time.Second

// becomes waits until the port accepts or refuses connections, and returns the time since since.
func becomes(port int, open bool, since time.Time) (time.Duration, error) {
	for {
		now := accepts(port)
		if now == open {
			return time.Since(since), nil
		}
		if time.Since(since) > patience {
			return 0, fmt.Errorf("port %d: open %v after %s, want %v", port, now, patience, open)
		}
		time.Sleep(100 * time.Microsecond)
	}
}

func accepts(port int) bool {
	c, err := net.Dial("tcp4", "127.0.0.1:"+strconv.Itoa(port))
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}

func spread(all []time.Duration) string {
	if len(all) == 0 {
		return "no samples"
	}
	slices.Sort(all)
	at := func(q float64) time.Duration { return all[min(len(all)-1, int(q*float64(len(all))))] }
	return fmt.Sprintf("median %s, 99th percentile %s, longest %s", at(0.5).Round(10*time.Microsecond), at(0.99).Round(10*time.Microsecond),
		all[len(all)-1].Round(10*time.Microsecond))
}

// change makes changes at a rate, then checks every port by connecting.
func (b *bench) change() error {
	const names, ports = 100, 300
	base := firstPort + b.services
	want := map[string]int{}
	used := map[int]bool{}
	tick := time.NewTicker(time.Second / time.Duration(b.rate))
	defer tick.Stop()
	changes := 0
	for until := time.Now().Add(b.churn); time.Now().Before(until); changes++ {
		<-tick.C
		name := "c" + strconv.Itoa(rand.IntN(names))
		c := command{Do: "delete", Name: name}
		delete(used, want[name])
		delete(want, name)
		if port := base + rand.IntN(ports); rand.IntN(3) > 0 && !used[port] {
			c = command{Do: "set", Name: name, Port: port}
			want[name], used[port] = port, true
		}
		if _, err := b.ask(c); err != nil {
			return err
		}
	}
	began := time.Now()
	var faults []string
	for i := range ports {
		if _, err := becomes(base+i, used[base+i], began); err != nil {
			faults = append(faults, err.Error())
		}
	}
	for i := range b.services {
		if !accepts(firstPort + i) {
			faults = append(faults, fmt.Sprintf("port %d is closed", firstPort+i))
		}
	}
	fmt.Printf("%d changes at %d per second: %d of %d ports wrongly open or closed\n", changes, b.rate, len(faults), b.services+ports)
	if len(faults) > 0 {
		return errors.New(strings.Join(faults, "\n"))
	}
	return nil
}
