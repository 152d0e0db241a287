// Command mounts measures the cost of a container runtime's mounts for the host. It mounts and unmounts inside a mount namespace of
// pkg/mountns, in turn hidden from and visible to the host, in addition to a number of standing mounts. A watcher on the host polls
// /proc/self/mountinfo and reads it completely after each event, as systemd does. It does not need root: it creates host and namespace in
// a user namespace.
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

// Roles of this program except for the measuring one.
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
	fl.StringVar(&o.standing, "standing", "0,500,2000", "number of standing mounts for each round")
	fl.IntVar(&o.churn, "churn", 1000, "number of mounts and unmounts while the host is watched")
	fl.IntVar(&o.pairs, "pairs", 3, "pairs of hidden and visible")
	fl.DurationVar(&o.pause, "pause", time.Millisecond, "pause between two changes; with 0 the watcher may miss changes")
	fl.StringVar(&o.json, "json", "", "`FILE` for the samples")
	return fl, o
}

// measure runs the host role in new namespaces.
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
	cmd.Dir = "/" // root of the new namespace may not have access to the working directory
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	signal.Ignore(syscall.SIGINT) // the host role gets it too, and its end removes the namespaces
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

// host simulates a host with a shared root mount and measures there. It mounts a tmpfs on dir.
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
