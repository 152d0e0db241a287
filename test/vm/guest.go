package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Paths in the machine. The host creates the share with the file wanted, and reads the other files from it.
const (
	share       = "/mnt/share"
	tree        = "/opt/rootlessnode"
	nodeProgram = tree + "/bin/rootlessnode"
	rebootMark  = "/var/lib/guest-rebooted"
	guestDevice = "/dev/vdb" // with the tree

	progressLine  = "/dev/ttyS1" // for verdicts
	heartbeatLine = "/dev/ttyS2" // for a line every heartbeatEvery

	patienceFile = "patience" // in the share
)

const (
	heartbeatEvery = 15 * time.Second
	doneWord       = "done" // the last line of the file verdicts
)

// patience is the time limit for one command, and for one wait of a command. severalLimit is that for a command line with several commands.
var (
	patience     = patiently(5 * time.Minute)
	severalLimit = patiently(15 * time.Minute)
)

// patiently multiplies a time limit by the number in the share's file patience, if there is one.
func patiently(limit time.Duration) time.Duration {
	text, err := os.ReadFile(filepath.Join(share, patienceFile))
	if err != nil {
		return limit
	}
	factor, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return limit
	}
	return limit * time.Duration(max(factor, 1))
}

// guest runs verdicts, one at a time.
type guest struct {
	log      *os.File               // of the current verdict
	waitsFor atomic.Pointer[string] // the current command of the current verdict
	stuck    *sync.Once             // for the diagnosis of a command or verdict that reached its limit
}

// runGuest runs the selected verdicts of this boot, and then powers off the machine or reboots it.
func runGuest(ctx context.Context) error {
	for key, value := range map[string]string{"HOME": "/root", "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"} {
		if err := os.Setenv(key, value); err != nil {
			return err
		}
	}
	go heartbeat(ctx)
	go syncShare(ctx)
	now := withSystemd
	if init, err := os.ReadFile("/proc/1/comm"); err != nil || strings.TrimSpace(string(init)) != "systemd" {
		now = withoutSystemd
	} else if exists(rebootMark) {
		now = rebooted
	}
	text, err := os.ReadFile(filepath.Join(share, "wanted"))
	if err != nil {
		return err
	}
	chosen, err := selected(strings.Fields(string(text)))
	if err != nil {
		return err
	}
	clock, _ := os.ReadFile("/sys/devices/system/clocksource/clocksource0/current_clocksource")
	if err := appendTo(progressLine, fmt.Sprintf("booted in %d s, clock %s", uptime(), clock)); err != nil {
		return err
	}
	g := &guest{}
	later := false
	for _, v := range chosen {
		if v.boot == now {
			err = errors.Join(err, g.evaluate(ctx, v))
		}
		later = later || v.boot == rebooted
	}
	if now == withSystemd && later {
		if err := mountAtBoot(); err != nil {
			return err
		}
		unix.Sync()
		return command(ctx, io.Discard, "systemctl", "reboot", "--no-block")
	}
	err = errors.Join(err, appendTo(filepath.Join(share, "verdicts"), doneWord+"\n"))
	unix.Sync()
	return errors.Join(err, unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF))
}

// mountAtBoot has the program mounted at the next boot, because the user manager starts the node then.
func mountAtBoot() error {
	return errors.Join(appendTo("/etc/fstab", guestDevice+" "+tree+" ext4 ro 0 0\n"), os.WriteFile(rebootMark, nil, 0o600))
}

// evaluate runs a verdict and writes its result. If it fails or does not end within its limit, the state of the node and of the machine is
// added to its log.
func (g *guest) evaluate(ctx context.Context, v verdict) error {
	log, err := os.OpenFile(filepath.Join(share, v.name+".log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	g.log, g.stuck = log, new(sync.Once)
	g.note("nothing yet")
	limit := patiently(v.limit)
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	began := time.Now()
	done := make(chan error, 1)
	go func() { done <- v.run(g, running) }()
	select {
	case err = <-done:
	case <-time.After(limit):
		g.printf("%s: not done within %v; it waits for: %s\n", v.name, limit, *g.waitsFor.Load())
		g.diagnoseStuck()
		cancel()
		err = errors.New("not done within its limit")
		select {
		case reason := <-done:
			err = errors.Join(err, reason)
		case <-time.After(time.Minute):
			return appendBoth(fmt.Sprintf("not ok %s: its commands cannot be ended\n", v.name))
		}
	}
	result := "ok"
	if err != nil {
		result = "not ok"
		g.printf("%s failed: %v; its last command: %s\n", v.name, err, *g.waitsFor.Load())
		g.stuck.Do(g.diagnose)
	}
	return appendBoth(fmt.Sprintf("%s %s (%d s)\n", result, v.name, int(time.Since(began).Seconds())))
}

// appendBoth writes a result for the host, which prints it at once and reads it at the end.
func appendBoth(line string) error {
	err := errors.Join(appendTo(filepath.Join(share, "verdicts"), line), appendTo(progressLine, line))
	unix.Sync()
	return err
}

// printf writes to the log of the verdict.
func (g *guest) printf(format string, args ...any) { _, _ = fmt.Fprintf(g.log, format, args...) }

// note records what the verdict waits for.
func (g *guest) note(what string) { g.waitsFor.Store(&what) }

// heartbeat writes a line to a serial line every heartbeatEvery. The host restarts a machine that does not.
func heartbeat(ctx context.Context) {
	for ctx.Err() == nil {
		load, _ := os.ReadFile("/proc/loadavg")
		memory, _ := os.ReadFile("/proc/meminfo")
		_, available, _ := strings.Cut(string(memory), "MemAvailable:")
		available, _, _ = strings.Cut(available, "\n")
		_ = appendTo(heartbeatLine, fmt.Sprintf("alive after %d s, load %s, available %s\n",
			uptime(), strings.TrimSpace(string(load)), strings.TrimSpace(available)))
		time.Sleep(heartbeatEvery)
	}
}

// syncShare writes the logs to the disk regularly, because the host reads them also after it has killed the machine.
func syncShare(ctx context.Context) {
	for ctx.Err() == nil {
		time.Sleep(heartbeatEvery)
		if dir, err := os.Open(share); err == nil {
			_ = unix.Syncfs(int(dir.Fd()))
			_ = dir.Close()
		}
	}
}

// uptime returns the seconds since the boot.
func uptime() int {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return 0
	}
	return int(now.Sec)
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// appendTo writes text to the end of a file or to a device.
func appendTo(path, text string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND|unix.O_NOCTTY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// diagnoseStuck prints the state of the machine and the stacks of the nodes' goroutines, once for each verdict.
func (g *guest) diagnoseStuck() {
	g.stuck.Do(func() {
		g.diagnose()
		g.section("pkill", "-QUIT", "-x", "rootlessnode.*")
		time.Sleep(5 * time.Second)
		for _, log := range nodeLogs("node") {
			g.section("tail", "-n", "400", log)
		}
	})
}

// nodeLogs returns the paths of the logs of a component, or of all if component is "*", of all nodes in the machine.
func nodeLogs(component string) []string {
	logs, _ := filepath.Glob("/home/*/.local/share/rootlessnode/nodes/*/log/" + component + ".log")
	return logs
}

// diagnose prints the state of the nodes and of the machine.
func (g *guest) diagnose() {
	g.section("free", "-m")
	g.section("ps", "-ww", "-eo", "pid,ppid,user:8,stat,wchan:20,etimes,time,args", "--forest")
	g.section("su", "dev", "-c", "XDG_RUNTIME_DIR=/run/user/$(id -u) "+nodeProgram+" status")
	for _, log := range nodeLogs("*") {
		g.section("tail", "-n", "25", log)
	}
	g.section("sh", "-c", `for p in $(ps -eo pid=,stat= | awk '$2 ~ /^D/ { print $1 }'); do cat "/proc/$p/comm" "/proc/$p/stack"; done`)
	g.section("sh", "-c", "journalctl --no-pager -q -n 60; dmesg | tail -n 60")
}

// section prints a command and its output. The command has a limit of its own, which does not depend on the verdict's.
func (g *guest) section(args ...string) {
	g.printf("--- %s\n", strings.Join(args, " "))
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := command(ctx, g.log, args...); err != nil {
		g.printf("%v\n", err)
	}
}

// within calls check until it succeeds. After limit it returns check's last error.
func (g *guest) within(ctx context.Context, limit time.Duration, what string, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	log := g.log
	for {
		g.note(what)
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			_, _ = fmt.Fprintf(log, "%s: not done within %v\n", what, limit)
			return fmt.Errorf("%s: not done within %v: %w", what, limit, err)
		case <-time.After(time.Second):
		}
	}
}

// lines returns the lines of text that are not empty.
func lines(text string) []string {
	return slices.DeleteFunc(strings.Split(text, "\n"), func(l string) bool { return strings.TrimSpace(l) == "" })
}
