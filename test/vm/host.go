package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Environment variables of hack/vm.sh. envOut names the directory of the build output; hack/vm.sh sets it.
const (
	envOut      = "OUT"
	envLimit    = "ROOTLESSNODE_VM_LIMIT"
	envPatience = "ROOTLESSNODE_VM_PATIENCE" // multiplies the limits of verdicts and their commands
	envMemory   = "ROOTLESSNODE_VM_MEMORY"
	envAccount  = "ROOTLESSNODE_TEST_ACCOUNT"
)

// host creates and runs machines. It must be in the top directory of the repository.
type host struct {
	chosen  []verdict
	out     string // the build output
	results string // directory for what the machines wrote, in out
	stage   string // temporary directory; other accounts can read it
	base    string // directory of the cached root image
	account string // runs QEMU
	memory  string // of the machine, in MiB
	limit   time.Duration
	join    *joinHost // nil unless joined is requested
}

// runHost runs the named verdicts, or the default ones, each in a machine that boots as the verdict needs.
func runHost(ctx context.Context, names []string) error {
	chosen, err := selected(names)
	if err != nil {
		return fmt.Errorf("%w\nhint:\ndocs/virtual-machine.md lists them", err)
	}
	limit, err := time.ParseDuration(environment(envLimit, "90m"))
	if err != nil {
		return err
	}
	out := os.Getenv(envOut)
	if out == "" || os.Geteuid() != 0 {
		return errors.New("run hack/vm.sh as root")
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	h := &host{
		chosen: chosen, out: out, results: filepath.Join(out, "vm"), base: filepath.Join(cache, "rootlessnode", "vm", rootKey()),
		account: environment(envAccount, "rootlessnode-test"), memory: environment(envMemory, "6144"), limit: limit,
	}
	if h.stage, err = os.MkdirTemp(stageParent(), "rootlessnode-vm."); err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(h.stage) }()
	if err := os.Chmod(h.stage, 0o755); err != nil { //nolint:gosec // the account must have access
		return err
	}
	if err := h.prepareImages(ctx); err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(h.results), os.RemoveAll(h.hungResults()), os.MkdirAll(h.results, 0o755)); err != nil {
		return err
	}
	return h.runMachines(ctx)
}

func environment(key, otherwise string) string {
	if v := os.Getenv(key); v != "" {
		return v
	}
	return otherwise
}

// stageParent returns the directory for the machine's files: memory if there is enough space, because etcd waits for the disk after each
// write.
func stageParent() string {
	const need = 16 << 30
	var st syscall.Statfs_t
	if err := syscall.Statfs("/dev/shm", &st); err == nil && st.Bavail*uint64(st.Bsize) >= need { //nolint:gosec // Bsize is positive
		return "/dev/shm"
	}
	return "/var/tmp"
}

// hungResults returns the directory of the results of a machine that hung and was started again.
func (h *host) hungResults() string { return h.results + "-hung" }

// runMachines runs a machine for the verdicts with systemd and another for those without. A machine that hangs is run again, once, unless
// a verdict has failed already.
func (h *host) runMachines(ctx context.Context) error {
	for _, init := range []string{"", guestInit} {
		var mine []verdict
		for _, v := range h.chosen {
			if (v.boot == withoutSystemd) == (init != "") {
				mine = append(mine, v)
			}
		}
		if len(mine) == 0 {
			continue
		}
		got, err := h.runMachine(ctx, init)
		if errors.Is(err, errHung) && h.join == nil && !strings.Contains("\n"+got, "\nnot ok") {
			h.printLogs(mine, got)
			if err := errors.Join(os.Rename(h.results, h.hungResults()), os.Mkdir(h.results, 0o755)); err != nil {
				return err
			}
			say("starting the virtual machine again, from new images, because it hung; logs of the first start: %s", h.hungResults())
			got, err = h.runMachine(ctx, init)
		}
		if err = errors.Join(err, missing(mine, got)); err != nil {
			h.printLogs(mine, got)
			return fmt.Errorf("%w\nconsole and logs: %s", err, h.results)
		}
	}
	say("all tests passed in the virtual machine")
	return nil
}

// missing returns an error that names the verdicts that did not pass. results is the text that the machine wrote.
func missing(wanted []verdict, results string) error {
	var failed []string
	for _, v := range wanted {
		if !passed(v, results) {
			failed = append(failed, v.name)
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("tests failed in the virtual machine: %s", strings.Join(failed, ", "))
	}
	if all := lines(results); all[len(all)-1] != doneWord {
		return errors.New("the virtual machine did not run to its end")
	}
	return nil
}

func passed(v verdict, results string) bool {
	return slices.ContainsFunc(lines(results), func(l string) bool { return strings.HasPrefix(l, "ok "+v.name+" ") })
}

// printLogs prints the ends of the machine's logs, and of those of verdicts that did not pass.
func (h *host) printLogs(wanted []verdict, results string) {
	names := []string{"heartbeat", "monitor", "qemu", "console", "guest"}
	if h.join != nil {
		names = append(names, "joined-host")
	}
	for _, v := range wanted {
		if !passed(v, results) {
			names = append(names, v.name)
		}
	}
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(h.results, name+".log"))
		if err != nil || len(text) == 0 {
			continue
		}
		all := lines(string(text))
		fmt.Printf("--- the end of %s.log\n%s\n", name, printable(strings.Join(all[max(0, len(all)-400):], "\n")))
	}
}

// printable removes control characters from text of another account, so that it can be printed on root's terminal.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || r >= ' ' && r <= '~' {
			return r
		}
		return -1
	}, text)
}

func say(format string, args ...any) { fmt.Printf("==> "+format+"\n", args...) }

// do runs a command whose output is shown.
func do(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// library returns a command that calls a function of hack/lib.sh.
func library(ctx context.Context, function string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "bash", append([]string{"-c", `set -euo pipefail; . hack/lib.sh; "$@"`, "bash", function}, args...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd
}

// own changes the owner of files to the account that runs QEMU.
func (h *host) own(paths ...string) error {
	u, err := user.Lookup(h.account)
	if err != nil {
		return err
	}
	uid, uerr := strconv.Atoi(u.Uid)
	gid, gerr := strconv.Atoi(u.Gid)
	err = errors.Join(uerr, gerr)
	for _, path := range paths {
		if err == nil {
			err = os.Lchown(path, uid, gid)
		}
	}
	return err
}
