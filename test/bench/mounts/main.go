// Command mounts measures what a container runtime's mounts cost the host: it mounts and unmounts inside a mount namespace
// of pkg/mountns, hidden and visible in turn, beside standing mounts that are shared too, while a watcher on the host
// polls /proc/self/mountinfo and reads all of it whenever it is woken, as systemd does. It needs no root: host and
// namespace are made in a user namespace of its own.
//
//	mounts [-standing 0,500,2000] [-churn 1000] [-pairs 3] [-pause 1ms] [-json FILE]
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Roles of this program besides the measuring one.
const (
	roleHost  = "host"
	roleChurn = "churn"
)

type options struct {
	standing     string
	churn, pairs int
	pause        time.Duration
	json         string
}

func main() {
	var err error
	switch {
	case len(os.Args) > 2 && os.Args[1] == roleHost:
		err = host(os.Args[2:])
	case len(os.Args) > 5 && os.Args[1] == roleChurn:
		err = churn(os.Args[2:])
	default:
		err = measure()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func flags() (*flag.FlagSet, *options) {
	o := &options{}
	fl := flag.NewFlagSet("mounts", flag.ExitOnError)
	fl.StringVar(&o.standing, "standing", "0,500,2000", "how many mounts are there before, for each round")
	fl.IntVar(&o.churn, "churn", 1000, "mounts that are made and unmounted again while the host is watched")
	fl.IntVar(&o.pairs, "pairs", 3, "pairs of hidden and visible")
	fl.DurationVar(&o.pause, "pause", time.Millisecond, "between two changes; 0: as fast as it goes, and the watcher may miss some")
	fl.StringVar(&o.json, "json", "", "`FILE` for the samples")
	return fl, o
}

// measure runs the host role in namespaces of its own.
func measure() error {
	fl, o := flags()
	if err := fl.Parse(os.Args[1:]); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "bench-mounts")
	if err != nil {
		return err
	}
	cmd := exec.Command("/proc/self/exe", append([]string{roleHost, dir}, os.Args[1:]...)...)
	cmd.Stderr = os.Stderr
	cmd.Dir = "/" // the root made here may not enter every directory
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	signal.Ignore(syscall.SIGINT) // the host role gets it too, and its namespaces end with it
	out, err := cmd.Output()
	if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
		return err
	}
	var samples []sample
	if err := json.Unmarshal(out, &samples); err != nil {
		return err
	}
	fmt.Print(table(samples))
	if o.json == "" {
		return nil
	}
	return os.WriteFile(o.json, out, 0o644)
}

// host makes a host whose root is shared, and measures there. dir becomes a file system of its own.
func host(args []string) error {
	fl, o := flags()
	if err := fl.Parse(args[1:]); err != nil {
		return err
	}
	dir := args[0]
	for _, m := range []struct {
		target, kind string
		flags        uintptr
	}{{"/", "", unix.MS_REC | unix.MS_PRIVATE}, {dir, "tmpfs", 0}, {"/", "", unix.MS_REC | unix.MS_SHARED}} {
		if err := unix.Mount("none", m.target, m.kind, m.flags, ""); err != nil {
			return fmt.Errorf("make a host: mount %s: %w", m.target, err)
		}
	}
	var all []sample
	for word := range strings.SplitSeq(o.standing, ",") {
		standing, err := strconv.Atoi(word)
		if err != nil {
			return fmt.Errorf("-standing: %w", err)
		}
		for i := range o.pairs {
			s, err := o.pair(filepath.Join(dir, fmt.Sprintf("%d-%d", standing, i)), standing, i%2 == 1)
			if err != nil {
				return err
			}
			all = append(all, s...)
		}
	}
	return json.NewEncoder(os.Stdout).Encode(all)
}
