package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// hangLimit is the time without a heartbeat after which a machine hangs. It is long enough for a reboot of an emulated machine.
const hangLimit = 4 * time.Minute

// errHung is the error of a machine that wrote no heartbeat for hangLimit.
var errHung = errors.New("the virtual machine hung")

// kernelArguments: emulation is slow with CPU mitigations and with time from a timer device. The kernel prints the stacks of all tasks when
// the host sends an NMI.
const kernelArguments = "root=/dev/vda rw console=ttyS0 quiet mitigations=off tsc=reliable clocksource=tsc nowatchdog unknown_nmi_panic panic_print=0x41"

// qemuArguments returns the command line of the machine in dir. String instructions that repeat per byte are disabled, because they are slow
// when emulated. The serial lines are the console, the verdicts and the heartbeats.
func (h *host) qemuArguments(dir, init string) []string {
	drive := func(file string) string { return "if=virtio,format=raw,cache=unsafe,file=" + file }
	at := func(name string) string { return filepath.Join(dir, name) }
	kernel := kernelArguments
	if init != "" {
		kernel += " init=" + init
	}
	args := []string{
		"qemu-system-x86_64", "-no-user-config", "-nodefaults", "-display", "none",
		"-accel", "kvm", "-accel", "tcg,thread=multi", "-cpu", "max,-erms,-fsrm,-smap,-smep,-la57", "-smp", "2", "-m", h.memory,
		"-device", "virtio-rng-pci", "-kernel", at("vmlinuz"), "-initrd", at("initrd"), "-append", kernel,
		"-drive", drive(at("root.ext4")), "-drive", drive(h.treeFile()) + ",readonly=on", "-drive", drive(at("share.ext4")),
		"-serial", "file:" + at("console.log"), "-serial", "file:" + at("progress"), "-serial", "file:" + at("heartbeat"),
		"-chardev", "pipe,id=monitor,path=" + at("monitor"), "-mon", "chardev=monitor,mode=readline",
	}
	if h.join != nil {
		args = append(args, "-netdev", "tap,id=net0,ifname=tap0,script=no,downscript=no", "-device", "virtio-net-pci,netdev=net0,romfile=")
	}
	return args
}

// runMachine runs a machine from new images to its end, as an unprivileged account without root's terminal. It returns the machine's file
// of verdicts, and collects all that the machine wrote. The error is errHung if the machine hung.
func (h *host) runMachine(ctx context.Context, init string) (results string, err error) {
	dir, err := h.freshMachine(ctx)
	if err != nil {
		return "", err
	}
	say("running the virtual machine for at most %v%s", h.limit, map[bool]string{true: ", without systemd"}[init != ""])
	limited, cancel := context.WithTimeout(ctx, h.limit)
	defer cancel()
	args := h.qemuArguments(dir, init)
	as := append([]string{"setpriv", "--reuid=" + h.account, "--regid=" + h.account, "--init-groups", "env", "HOME=" + dir, "TMPDIR=" + dir}, args...)
	if h.join != nil { // a network namespace that ends with QEMU
		as = append([]string{"unshare", "--net", "sh", "-ec", `ip tuntap add dev tap0 mode tap user "$0" && exec "$@"`, h.account}, as...)
	}
	log, err := os.OpenFile(filepath.Join(h.results, "qemu.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return "", err
	}
	defer log.Close()
	qemu := exec.CommandContext(limited, as[0], as[1:]...)
	qemu.Stdout, qemu.Stderr = log, log
	qemu.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	qemu.Cancel = func() error { return qemu.Process.Signal(unix.SIGTERM) }
	qemu.WaitDelay = 10 * time.Second // then it is killed
	if err := qemu.Start(); err != nil {
		return "", err
	}
	running, ended := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	var hung bool
	tasks.Go(func() {
		follow := library(ctx, "follow", h.account, filepath.Join(dir, "progress"), strconv.Itoa(qemu.Process.Pid), strconv.Itoa(int(h.limit.Seconds())))
		_ = follow.Run() // only shows text
	})
	tasks.Go(func() {
		if hung = watch(running, filepath.Join(dir, "heartbeat"), starved(qemu.Process.Pid)); hung {
			h.inspect(running, dir)
			cancel()
		}
	})
	if h.join != nil && init == "" {
		tasks.Go(func() { h.join.run(running, qemu.Process.Pid, cancel) })
	}
	err = qemu.Wait()
	ended()
	tasks.Wait()
	if h.join != nil {
		h.join.end()
	}
	switch {
	case hung:
		err = errHung
	case errors.Is(limited.Err(), context.DeadlineExceeded):
		err = fmt.Errorf("the virtual machine did not stop within %v", h.limit)
	case err != nil:
		err = fmt.Errorf("QEMU: %w", err)
	}
	results, cerr := h.collect(dir)
	return results, errors.Join(err, cerr)
}

// watch waits until ctx ends, or until the machine has written no heartbeat for hangLimit. It reports whether the machine hangs. starved
// returns the time since its last call in which the machine had to wait for a processor of the host. This time does not count.
func watch(ctx context.Context, file string, starved func() time.Duration) bool {
	const every = 2 * time.Second
	var size int64
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(every):
		}
		last = last.Add(starved())
		if st, err := os.Lstat(file); err == nil && st.Size() != size {
			size, last = st.Size(), time.Now()
		} else if time.Since(last) >= hangLimit {
			return true
		}
	}
}

// starved returns a function that returns the largest time that a thread of a process has waited for a processor since the last call.
func starved(pid int) func() time.Duration {
	total := map[string]time.Duration{}
	return func() (longest time.Duration) {
		files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		for _, file := range files {
			text, _ := os.ReadFile(file) // the thread may have ended
			var ran, waited time.Duration
			if _, err := fmt.Sscan(string(text), &ran, &waited); err == nil {
				longest = max(longest, waited-total[file])
				total[file] = waited
			}
		}
		return longest
	}
}

// inspect saves the state of the processors of a machine that hangs, and of QEMU's threads, to monitor.log. The NMI makes the kernel print
// the stacks of all tasks to the console.
func (h *host) inspect(ctx context.Context, dir string) {
	load, _ := os.ReadFile("/proc/loadavg")
	say("the virtual machine hangs: no heartbeat for %v; load of this host: %s", hangLimit, strings.TrimSpace(string(load)))
	const script = `cat "$0.out" & for c in "info status" "info registers -a" "info registers -a" "info registers -a" nmi; do
		echo "$c"; sleep 2; done >"$0.in"; sleep 20; echo "info registers -a" >"$0.in"; sleep 2; kill $!`
	monitor := library(ctx, "unprivileged", h.account, "60", "sh", "-c", script, filepath.Join(dir, "monitor"))
	threads := exec.CommandContext(ctx, "ps", "-L", "-o", "pid,lwp,stat,wchan:20,etimes,time,comm", "-u", h.account)
	log, err := os.OpenFile(filepath.Join(h.results, "monitor.log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		say("%v", err)
		return
	}
	defer log.Close()
	for _, cmd := range []*exec.Cmd{threads, monitor} {
		cmd.Stdout = log
		if err := cmd.Run(); err != nil {
			_, _ = fmt.Fprintf(log, "%v: %v\n", cmd.Args[0], err)
		}
	}
}

// collect copies what the machine wrote to the results, after earlier machines' results, and returns its file of verdicts.
func (h *host) collect(dir string) (string, error) {
	ctx := context.Background() // also after an interrupt
	dump := filepath.Join(h.stage, "dump")
	if err := errors.Join(os.RemoveAll(dump), os.Mkdir(dump, 0o755)); err != nil {
		return "", err
	}
	err := library(ctx, "dump_image", h.account, filepath.Join(dir, "share.ext4"), dump).Run()
	for from, to := range map[string]string{"console.log": "console.log", "heartbeat": "heartbeat.log"} {
		err = errors.Join(err, library(ctx, "collect_one", h.account, filepath.Join(dir, from), filepath.Join(dump, to)).Run())
	}
	entries, rerr := os.ReadDir(dump)
	err = errors.Join(err, rerr)
	for _, e := range entries {
		if e.Name() != "vm" { // the program
			err = errors.Join(err, appendFile(filepath.Join(h.results, e.Name()), filepath.Join(dump, e.Name())))
		}
	}
	verdicts, verr := os.ReadFile(filepath.Join(dump, "verdicts"))
	if verr != nil {
		say("the virtual machine has written no verdict")
	}
	return string(verdicts), err
}

// appendFile writes the content of a file to the end of another one.
func appendFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
