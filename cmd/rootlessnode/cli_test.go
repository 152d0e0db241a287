package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
	"gotest.tools/v3/golden"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/nodeexec"
	"github.com/rootlessnode/rootlessnode/internal/preflight"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

func TestUsageErrors(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"bogus"}, `unknown command "bogus" for rootlessnode`},
		{[]string{"stats"}, "did you mean status?"},
		{[]string{"images", "imprt"}, "did you mean import?"},
		{[]string{"up", "--bogus"}, "unknown flag: --bogus"},
		{[]string{"up", "--timeout", "soon"}, "invalid argument"},
		{[]string{"up", "extra"}, "got 1 arguments, expected none"},
		{[]string{"exec"}, "expected at least 1"},
		{[]string{"logs", "a", "b"}, "expected 0 to 1"},
		{[]string{"status", "-o", "yaml"}, `unknown output format "yaml"`},
		{[]string{"--name", "a/b", "status"}, "name"},
		{[]string{"up", "--set", "network.mtu=x"}, "set network.mtu: must be a whole number"},
		{[]string{"up", "--set", "bare"}, "--set bare: must have the form PATH=VALUE"},
		{[]string{"up", "--config", "/no/such/file"}, "read config"},
		{[]string{"images", "import", "/no/such/archive"}, "open image archive"},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			t.Parallel()
			c := newCLI(t)
			assert.Check(t, is.Equal(c.run(tc.args...), errdefs.ExitConfig))
			assert.Check(t, is.Contains(c.err.String(), tc.want))
			assert.Check(t, is.Contains(c.err.String(), "error: "))
			assert.Check(t, is.Len(c.node.calls, 0), "the command called the node")
		})
	}
}

func TestAllFlagErrorsTogether(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	assert.Equal(t, c.run("up", "--set", "foo=1", "--set", "network.mtu=x", "--set", "bar"), errdefs.ExitConfig)
	assert.Equal(t, strings.Count(c.err.String(), "error: "), 3, c.err.String())
}

func TestRootIsRejected(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"up"}, {"down"}, {"status"}, {"exec", "true"}, {"kubectl", "get", "pods"}, {"config", "effective"}, {"images", "list"}} {
		c := newCLI(t)
		c.uid = 0
		assert.Check(t, is.Equal(c.run(args...), errdefs.ExitPreflight), "%v", args)
		assert.Check(t, is.Contains(c.err.String(), "error: run as an ordinary user: root cannot run a rootless node"))
		assert.Check(t, is.Len(c.node.calls, 0))
	}
	c := newCLI(t)
	c.uid, c.inUserNS = 0, func() bool { return true }
	assert.Equal(t, c.run("up"), errdefs.ExitPreflight)
	assert.Assert(t, is.Contains(c.err.String(), "this process is uid 0 of another user namespace"))
	for _, args := range [][]string{{"version"}, {"config", "default"}, {"completion", "bash"}, {"help"}, {"up", "--help"}, {"check"}, {"host"}, {"mountns"}, {"mountns", "drop-in", "--help"}, {}} {
		c := newCLI(t)
		c.uid = 0
		assert.Check(t, is.Equal(c.run(args...), 0), "%v: %s", args, c.err.String())
	}
}

func TestErrorFormats(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.node.fails["status"] = fault()
	assert.Equal(t, c.run("status"), errdefs.ExitComponent)
	golden.Assert(t, c.err.String(), "error.txt")
	assert.Equal(t, c.out.Len(), 0)

	c = newCLI(t)
	c.node.fails["status"] = fault()
	assert.Equal(t, c.run("status", "-o", "json"), errdefs.ExitComponent)
	golden.Assert(t, c.err.String(), "error.json")
}

func TestUpInAPipe(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.node.statuses = upStatuses()
	assert.Equal(t, c.run("up", "--set", "api.port=7443", "--log-level", "debug", "--timeout", "7s"), 0)
	assert.DeepEqual(t, c.node.calls, []string{"status", "start", "wait usable"})
	assert.Equal(t, c.node.cfg.API.Port, 7443)
	assert.Equal(t, c.node.cfg.LogLevel, "debug")
	assert.Equal(t, c.node.options.Settings.Fields[0], config.Setting{Path: "api.port", Value: "7443"})
	golden.Assert(t, c.err.String(), "progress.txt")
	golden.Assert(t, strings.ReplaceAll(c.out.String(), c.node.dir, "DATA"), "summary.txt")
}

func TestUpDegraded(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.node.statuses = []status.Status{full()}
	assert.Equal(t, c.run("--name", "two", "up"), 0)
	golden.Assert(t, strings.ReplaceAll(c.out.String(), c.node.dir, "DATA"), "summary-degraded.txt")
}

// TestUpWaitsForTheNode checks --wait and the summary of a node whose DNS still starts.
func TestUpWaitsForTheNode(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	starting := upStatuses()[2]
	starting.Reason = "waiting for ClusterDNS: no name was resolved yet"
	c.node.statuses = []status.Status{starting}
	assert.Equal(t, c.run("up", "--wait", "node"), 0, c.err.String())
	assert.DeepEqual(t, c.node.calls, []string{"status", "start", "wait node"})
	assert.Check(t, is.Contains(c.out.String(), "\nNode devbox is Ready after 0.0s (Kubernetes v1.37.2)\n  waiting for ClusterDNS: no name was resolved yet\n"))
	assert.Equal(t, c.run("up", "--wait", "everything"), errdefs.ExitConfig)
	assert.Equal(t, c.run("up", "--wait", "node", "--foreground"), errdefs.ExitConfig)
}

func TestUpFails(t *testing.T) {
	t.Parallel()
	for call, class := range map[string]error{"start": errdefs.ErrPreflight, "wait usable": errdefs.ErrTimeout} {
		c := newCLI(t)
		c.node.fails[call] = errdefs.Class(class, errors.New("no luck"))
		assert.Check(t, is.Equal(c.run("up"), errdefs.ExitCode(class)))
		assert.Check(t, is.Equal(c.err.String(), "error: no luck\n"))
		assert.Check(t, is.Equal(c.out.String(), ""))
	}
}

func TestForegroundAndFile(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	file := filepath.Join(t.TempDir(), "config.yaml")
	assert.NilError(t, os.WriteFile(file, []byte("apiVersion: "+config.APIVersion+"\nkind: "+config.Kind+"\napi: {port: 1234}\n"), 0o600))
	assert.Equal(t, c.run("up", "--foreground", "--kubeconfig-merge=false", "--config", file, "--data-dir", "/d", "--components-dir", "/c"), 0, c.err.String())
	assert.DeepEqual(t, c.node.calls, []string{"foreground"})
	assert.Equal(t, fmt.Sprint(c.node.cfg.API.Port, c.node.cfg.DataDir, c.node.cfg.ComponentsDir), "1234/d/c")
}

func TestDown(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	assert.Equal(t, c.run("down"), 0)
	assert.Equal(t, c.out.String(), "node \"default\" is not running\n")

	c = newCLI(t)
	c.node.statuses = upStatuses()
	assert.Equal(t, c.run("down", "--delete-data"), 0)
	assert.DeepEqual(t, c.node.calls, []string{"status", "begin stop 3s", "stop", "delete"}) // the pods' data is deleted anyway
	assert.Equal(t, c.out.String(), "node \"default\" stopped (0.0s)\ndeleted the node's data in "+c.node.dir+"\n")

	c = newCLI(t)
	c.node.removed.Foreign, c.node.removed.DirKept = []string{"/d/precious.txt", "/d/bm (a mount)"}, "it is a mount"
	assert.Equal(t, c.run("down", "--delete-data"), 0)
	kept := "kept the empty directory " + c.node.dir + ": it is a mount\n" +
		"kept these files, which do not belong to the node:\n  /d/precious.txt\n  /d/bm (a mount)\n"
	assert.Equal(t, c.out.String(), "node \"default\" is not running\ndeleted the node's data in "+c.node.dir+"\n"+kept)

	c.out.Reset()
	c.node.fails["delete"] = errors.New("/d/kubelet/x: it is a mount")
	assert.Equal(t, c.run("down", "--delete-data"), errdefs.ExitOther)
	assert.Equal(t, c.out.String(), "node \"default\" is not running\n"+kept)

	c = newCLI(t)
	c.node.removed.Next = "/earlier"
	assert.Equal(t, c.run("down", "--delete-data"), 0)
	assert.Assert(t, strings.HasSuffix(c.out.String(), "data of an earlier start is in /earlier; the next \"rootlessnode up\" uses it\n"), c.out.String())

	c = newCLI(t)
	c.node.removed = nil
	assert.Equal(t, c.run("down", "--delete-data"), 0)
	assert.Equal(t, c.out.String(), "node \"default\" is not running\nthe node has no data\n")

	c = newCLI(t)
	c.node.fails["stop"] = errdefs.Class(errdefs.ErrTimeout, errors.New("it was killed"))
	assert.Equal(t, c.run("down", "--delete-data"), errdefs.ExitTimeout)
	assert.Check(t, !slices.Contains(c.node.calls, "delete"))
}

func TestStatus(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.node.statuses = []status.Status{full()}
	assert.Equal(t, c.run("status"), 0)
	golden.Assert(t, c.out.String(), "status.txt")

	c.out.Reset()
	assert.Equal(t, c.run("status", "-o", "json"), 0)
	var s status.Status
	assert.NilError(t, json.Unmarshal(c.out.Bytes(), &s))
	want := full()
	want.Render(c.commandOf)
	assert.DeepEqual(t, s, want)

	c = newCLI(t)
	assert.Equal(t, c.run("status"), 0)
	assert.Equal(t, c.out.String(), "node   default   stopped\n")
}

func TestEvents(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.node.events = []status.Event{
		{Seq: 1, Time: t0.Local(), Component: "kubelet", From: "starting", To: "running"},
		{Seq: 2, Time: t0.Local(), Component: "kubelet", From: "running", To: "backoff", Reason: "exited\nwith code 1", Tail: []string{"panic: <x>"}},
		{Time: t0.Local(), Lost: 3},
	}
	assert.Equal(t, c.run("events"), 0)
	lines := strings.Split(c.out.String(), "\n")
	assert.Check(t, is.Contains(lines[0], "kubelet                  starting -> running"))
	assert.Check(t, is.Contains(lines[1], "running -> backoff   exited with code 1"))
	assert.Check(t, is.Equal(lines[2], "    | panic: <x>"))
	assert.Check(t, is.Contains(lines[3], "3 events were lost"))

	c.out.Reset()
	assert.Equal(t, c.run("events", "-f", "-o", "json"), 0)
	for i, line := range strings.Split(strings.TrimSpace(c.out.String()), "\n") {
		var e status.Event
		assert.NilError(t, json.Unmarshal([]byte(line), &e))
		assert.Equal(t, e.Seq, c.node.events[i].Seq)
	}
	c.node.fails["events"] = errdefs.Class(errdefs.ErrNotRunning, errors.New("connection refused"))
	assert.Equal(t, c.run("--name", "two", "events"), errdefs.ExitOther)
	assert.Equal(t, c.err.String(), "error: node \"two\" is not running: connection refused\nhint: rootlessnode --name two up\n")
}

func TestExec(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	var got nodeexec.Request
	c.node.exec = func(r nodeexec.Request) (int, error) { got = r; return 42, nil }
	assert.Equal(t, c.run("exec", "-e", "A=1", "-e", "ROOTLESSNODE_NO_SUCH", "-w", "/d", "--", "ls", "-l", "--name", "x"), 42)
	assert.DeepEqual(t, got.Argv, []string{"ls", "-l", "--name", "x"})
	assert.Check(t, slices.Contains(got.Env, "A=1"))
	assert.Check(t, got.Dir == "/d" && !got.TTY && got.ForwardSignals)
	assert.Equal(t, c.run("exec", "-t", "ls", "-t"), 42) // the program's flags need no --
	assert.DeepEqual(t, got.Argv, []string{"ls", "-t"})
	assert.Check(t, got.TTY)
	assert.Equal(t, c.err.String(), "")

	c.node.exec = func(nodeexec.Request) (int, error) {
		return 127, &nodeexec.StartError{Code: 127, Text: "x: not found"}
	}
	assert.Equal(t, c.run("exec", "x"), 127)
	assert.Equal(t, c.err.String(), "error: x: not found\n")
}

func TestShell(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.env["SHELL"] = "/usr/bin/fish"
	var got [][]string
	c.node.exec = func(r nodeexec.Request) (int, error) {
		got = append(got, r.Argv)
		if r.Argv[0] == "/usr/bin/fish" {
			return 127, &nodeexec.StartError{Code: 127, Text: "not found"}
		}
		return 3, nil
	}
	assert.Equal(t, c.run("shell", "echo $HOME"), 3)
	assert.DeepEqual(t, got, [][]string{{"/usr/bin/fish", "-c", "echo $HOME"}, {"/bin/sh", "-c", "echo $HOME"}})
	assert.Equal(t, c.err.String(), "")
	for want, args := range map[string][]string{
		"ls -l -a":       {"ls", "-l", "-a"},
		"echo $1|zero|1": {"-c", "echo $1", "zero", "1"},
	} {
		got, c.env["SHELL"] = nil, ""
		assert.Equal(t, c.run(append([]string{"shell"}, args...)...), 3)
		assert.DeepEqual(t, got, [][]string{append([]string{"/bin/sh", "-c"}, strings.Split(want, "|")...)})
	}
}

// The prompt of an interactive shell begins with the name of the node, whatever the user's configuration sets.
func TestShellPrompt(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	var got nodeexec.Request
	c.node.exec = func(r nodeexec.Request) (int, error) {
		got = r
		return 0, nil
	}
	assert.Equal(t, c.run("--name", "two", "shell"), 0)
	assert.DeepEqual(t, got.Argv, []string{"/bin/sh"})
	assert.Check(t, slices.Contains(got.Env, "PS1=(two) # "))
	testutil.Require(t, testutil.Program("bash"))
	home := t.TempDir()
	assert.NilError(t, os.WriteFile(filepath.Join(home, ".bashrc"), []byte("PS1='user$ '; set -o pipefail\n"), 0o600))
	argv, _ := interactiveShell("bash", "(two) ")
	argv[2] += " -i" // there is no terminal
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Stdin = []string{"HOME=" + home, "PATH=" + os.Getenv("PATH")}, strings.NewReader("echo \"<$PS1>$SHELLOPTS\"\n")
	out, err := cmd.Output()
	assert.NilError(t, err)
	assert.Check(t, is.Contains(string(out), "<(two) user$ >"))
	assert.Check(t, is.Contains(string(out), "pipefail"))
}

func TestKubectl(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	assert.Equal(t, c.run("kubectl", "get", "pods"), errdefs.ExitOther)
	assert.Check(t, is.Contains(c.err.String(), "was never started"))
	assert.NilError(t, os.WriteFile(c.node.Kubeconfig(), []byte("config"), 0o600))
	assert.Equal(t, c.run("--name", "two", "kubectl", "expose", "--name", "x", "-A", "--help"), 0)
	assert.DeepEqual(t, c.replaced, []string{"/components/kubectl", "kubectl", "expose", "--name", "x", "-A", "--help", "KUBECONFIG=" + c.node.Kubeconfig()})
	assert.Equal(t, c.name, "two")
	for _, args := range [][]string{{"--name", "three"}, {"--name=three"}} {
		assert.Equal(t, c.run(append([]string{"kubectl"}, append(args, "get", "pods")...)...), 0)
		assert.DeepEqual(t, c.replaced, []string{"/components/kubectl", "kubectl", "get", "pods", "KUBECONFIG=" + c.node.Kubeconfig()})
		assert.Equal(t, c.name, "three")
	}
	assert.Equal(t, c.run("kubectl", "--name"), errdefs.ExitConfig)
}

func TestKubeconfig(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	assert.NilError(t, os.WriteFile(c.node.Kubeconfig(), []byte("config"), 0o600))
	assert.Equal(t, c.run("kubeconfig"), 0)
	assert.Equal(t, c.run("kubeconfig", "--path"), 0)
	assert.Equal(t, c.out.String(), "config"+c.node.Kubeconfig()+"\n")
}

func TestCheck(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.node.findings = []preflight.Finding{
		{Code: "RN-ROOT", Check: "root", Level: preflight.LevelPass, Message: "run by an ordinary user"},
		{Code: "RN-INOTIFY", Check: "inotify", Level: preflight.LevelWarn, Message: "few instances", Why: "programs fail", Hint: "# as root:\nsysctl -w x=1"},
	}
	assert.Equal(t, c.run("check"), 0)
	c.node.findings = append(c.node.findings, preflight.Finding{Code: "RN-CGROUP", Check: "cgroup", Level: preflight.LevelFail, Message: "no delegation", Hint: "rootlessnode host setup"})
	c.out.Reset()
	assert.Equal(t, c.run("check"), errdefs.ExitPreflight)
	golden.Assert(t, c.out.String(), "check.txt")
	assert.Equal(t, c.err.String(), "")
	c.out.Reset()
	assert.Equal(t, c.run("check", "-o", "json"), errdefs.ExitPreflight)
	var list []preflight.Finding
	assert.NilError(t, json.Unmarshal(c.out.Bytes(), &list))
	assert.Equal(t, len(list), 3)
	assert.Equal(t, list[1].Code, "RN-INOTIFY")
	c.out.Reset()
	assert.Equal(t, c.run("check", "--root-script"), 0)
	assert.Check(t, is.Contains(c.out.String(), "#!/bin/sh\n"))
}

func TestExplainCheck(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	assert.Equal(t, c.run("check", "--explain", "rn-tun"), 0)
	golden.Assert(t, c.out.String(), "explain.txt")
	c.out.Reset()
	assert.Equal(t, c.run("check", "--explain", "RN-TUN", "-o", "json"), 0)
	var found preflight.Check
	assert.NilError(t, json.Unmarshal(c.out.Bytes(), &found))
	assert.Equal(t, found.Name, "tun")
	assert.Equal(t, c.run("check", "--explain", "RN-NONE"), errdefs.ExitConfig)
	assert.Check(t, is.Contains(c.err.String(), "RN-SUBIDS"))
	assert.DeepEqual(t, c.node.calls, []string(nil))
}

func TestConfigCommands(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	assert.Equal(t, c.run("config", "default"), 0)
	assert.Equal(t, c.out.String(), string(config.Sample()))
	c.out.Reset()
	assert.Equal(t, c.run("config", "effective", "--set", "network.mtu=9000"), 0)
	assert.Check(t, is.Contains(c.out.String(), "mtu: 9000"))
}

func TestName(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.env["ROOTLESSNODE_NAME"] = "three"
	assert.Equal(t, c.run("status"), 0)
	assert.Equal(t, c.node.cfg.Name, "three")
	assert.Equal(t, c.command("up"), "rootlessnode up")
	assert.Equal(t, c.run("--name", "four", "status"), 0)
	assert.Equal(t, c.node.cfg.Name, "four")
	assert.Equal(t, c.command("up"), "rootlessnode --name four up")
}

func TestHelpAndCompletion(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	assert.Equal(t, c.run(), 0)
	golden.Assert(t, c.out.String(), "help.txt")
	for _, shell := range []string{"bash", "zsh", "fish"} {
		c.out.Reset()
		assert.Equal(t, c.run("completion", shell), 0)
		assert.Check(t, is.Contains(c.out.String(), "rootlessnode"))
	}
	assert.NilError(t, os.MkdirAll(c.node.Data().LogDir(), 0o700))
	assert.NilError(t, os.WriteFile(c.node.Data().Log("kubelet"), nil, 0o600))
	for words, want := range map[string]string{"up --set network.m": "network.mtu=", "logs ": "kubelet", "st": "status", "status -o ": "json"} {
		c.out.Reset()
		assert.Equal(t, c.run(append([]string{"__complete"}, strings.Split(words, " ")...)...), 0, "%s: %s", words, c.err.String())
		assert.Check(t, is.Contains(c.out.String(), want), "%s: %s", words, c.err.String())
	}
}
