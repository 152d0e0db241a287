package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// guestUser is the account of the machine that has a node.
const guestUser = "dev"

// shell runs a command line as an account, and returns its standard output.
type shell func(ctx context.Context, limit time.Duration, line string) (string, error)

// command runs a command in a process group of its own, which is killed when ctx ends. Standard output and error output go to out.
func command(ctx context.Context, out io.Writer, args ...string) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = out, out
	return runGroup(cmd)
}

func runGroup(cmd *exec.Cmd) error {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second // for processes that left the group and hold the output open
	return cmd.Run()
}

// run runs a command and returns its standard output. The verdict's log has the command, the time since the boot, and its output.
func (g *guest) run(ctx context.Context, limit time.Duration, args ...string) (string, error) {
	text := args[len(args)-1]
	g.note(text)
	g.printf("+ [%d s] %s\n", uptime(), text)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = io.MultiWriter(&out, g.log), g.log
	timer := time.AfterFunc(limit-time.Second, func() {
		g.printf("not done within %v: %s\n", limit, text)
		g.diagnoseStuck()
	})
	defer timer.Stop()
	if err := runGroup(cmd); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return out.String(), fmt.Errorf("%s: %w", text, err)
	}
	return out.String(), nil
}

// root runs a shell command line as root.
func (g *guest) root(ctx context.Context, line string) (string, error) {
	return g.run(ctx, patience, "bash", "-c", line)
}

// login is a shell as dev in a new login session.
func (g *guest) login(ctx context.Context, limit time.Duration, line string) (string, error) {
	return g.run(ctx, limit, "ssh", "-o", "StrictHostKeyChecking=no", "-o", "BatchMode=yes", "-o", "LogLevel=ERROR", guestUser+"@127.0.0.1", line)
}

// bySu is a shell as dev with a user manager, but without the environment variables for it.
func (g *guest) bySu(ctx context.Context, limit time.Duration, line string) (string, error) {
	return g.run(ctx, limit, "su", "-", guestUser, "-c", "unset XDG_RUNTIME_DIR DBUS_SESSION_BUS_ADDRESS; "+line)
}

// byEnter is a shell as plain, an account that `host setup` prepared, on a machine without systemd.
func (g *guest) byEnter(ctx context.Context, limit time.Duration, line string) (string, error) {
	return g.run(ctx, limit, nodeProgram, "host", "enter", "--user", "plain", "--command", "--", "bash", "-c", line)
}

// cronJob runs job.sh once.
const cronJob = "* * * * * [ -e code ] || [ -e begun ] || { touch begun; { env; bash job.sh; } >cron.log 2>&1; echo $? >code.new; mv code.new code; }\n"

// byCron is a shell as dev in a cron job, which has no environment variables for the user manager.
func (g *guest) byCron(ctx context.Context, limit time.Duration, line string) (string, error) {
	home := "/home/" + guestUser
	at := func(name string) string { return filepath.Join(home, name) }
	for _, name := range []string{"code", "begun"} {
		if err := os.RemoveAll(at(name)); err != nil {
			return "", err
		}
	}
	if err := os.WriteFile(at("job.sh"), []byte(line+"\n"), 0o644); err != nil {
		return "", err
	}
	if _, err := g.root(ctx, fmt.Sprintf("printf %%s '%s' | crontab -u %s -", cronJob, guestUser)); err != nil {
		return "", err
	}
	g.printf("+ [%d s] by cron: %s\n", uptime(), line)
	err := g.within(ctx, limit, "the job of cron: "+line, func() error { _, err := os.Stat(at("code")); return err })
	_, rerr := g.root(ctx, "crontab -u "+guestUser+" -r")
	output, oerr := os.ReadFile(at("cron.log"))
	g.printf("%s", output)
	code, cerr := os.ReadFile(at("code"))
	if err = errors.Join(err, rerr, oerr, cerr); err != nil {
		return string(output), err
	}
	for _, variable := range lines(string(output)) {
		if strings.HasPrefix(variable, "XDG_RUNTIME_DIR=") {
			return string(output), errors.New("a cron job has " + variable)
		}
	}
	if c := strings.TrimSpace(string(code)); c != "0" {
		return string(output), errors.New("the job of cron: exit code " + c)
	}
	return string(output), nil
}

// as returns a shell as an account, without a login session.
func (g *guest) as(name string) shell {
	return func(ctx context.Context, limit time.Duration, line string) (string, error) {
		u, err := user.Lookup(name)
		if err != nil {
			return "", err
		}
		return g.run(ctx, limit, "setpriv", "--reuid="+u.Uid, "--regid="+u.Gid, "--init-groups", "env", "-i", "HOME="+u.HomeDir,
			"PATH="+os.Getenv("PATH"), "XDG_RUNTIME_DIR=/run/user/"+u.Uid, "bash", "-c", line)
	}
}

// dev runs a command line as dev, without a login session.
func (g *guest) dev(ctx context.Context, line string) (string, error) {
	return g.as(guestUser)(ctx, patience, line)
}

// devUID returns the uid of dev.
func devUID() int {
	u, err := user.Lookup(guestUser)
	if err != nil {
		return -1
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return -1
	}
	return uid
}

// devSlice returns the cgroup of dev's user manager and sessions.
func devSlice() string { return fmt.Sprintf("/sys/fs/cgroup/user.slice/user-%d.slice", devUID()) }

// serviceProperty returns a property of dev's service for the node.
func (g *guest) serviceProperty(ctx context.Context, name string) (string, error) {
	out, err := g.dev(ctx, "systemctl --user show -P "+name+" rootlessnode@default")
	return strings.TrimSpace(out), err
}

// steps returns a command line that runs commands until one fails, each with its own limit. It then runs the command last in any case.
func steps(last string, commands ...string) string {
	limit := patience + 20*time.Second // longer than the limits that the commands themselves have
	define := fmt.Sprintf(`step() { echo "+ [$(cut -d. -f1 /proc/uptime) s] $*"; timeout --kill-after=10s %d "$@" || { echo "exit code $?: $*"; false; }; }; `,
		int(limit.Seconds()))
	line := define + "step " + strings.Join(commands, " && step ") + "; code=$?; step " + last + "; exit $code"
	return line
}
