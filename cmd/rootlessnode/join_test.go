package main

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/resources"
	"github.com/rootlessnode/rootlessnode/internal/hostsetup"
	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/membership"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/node"
)

const (
	testToken  = "abc123.0123456789abcdef"
	testServer = "https://192.0.2.1:6443"
)

var testHash = "sha256:" + strings.Repeat("0a", 32)

func TestHideSecrets(t *testing.T) {
	t.Parallel()
	env := []string{"HOME=/h"}
	for _, tc := range []struct{ argv, want, token string }{
		{"r up --join U --token T --ca-cert-hash H", "r up --join U --ca-cert-hash H", "T"},
		{"r up --token=T", "r up", "T"},
		{"r --name two up --set a=b --token T", "r --name two up --set a=b", "T"},
		{"r --name=two up --token T --foreground", "r --name=two up --foreground", "T"},
		{"r up --name two --token T", "r up --name two", "T"},
		{"r up --token A --token=B", "r up", "B"}, // the last one wins, as for flags
		{"r up --config --token --token T", "r up --config --token", "T"},
		{"r up --token-file --token --token T", "r up --token-file --token", "T"},
		{"r up --token-file=f --token T", "r up --token-file=f", "T"},
		{"r up -- --token T", "", ""},
		{"r up --token", "", ""},
		{"r up --token=", "", ""},
		{"r up --config --token", "", ""},
		{"r up", "", ""},
		{"r", "", ""},
		{"r kubectl --token T up", "", ""}, // kubectl's own
		{"r --name up kubectl --token T", "", ""},
		{"r exec -- up --token T", "", ""},
		{"r host enter --user alice -- up --token T --join x", "r host enter --user alice -- up --join x", "T"},
		{"r --name n host enter --user=alice up --token=T", "r --name n host enter --user=alice up", "T"},
		{"r host enter --user up -- --name n up --token T", "r host enter --user up -- --name n up", "T"},
		{"r host enter --user alice --command -- up --token T", "", ""},
		{"r host enter --user alice -- exec up --token T", "", ""},
		{"r host setup --user alice up --token T", "", ""},
		{"r host enter", "", ""},
	} {
		argv := strings.Fields(tc.argv)
		got, gotEnv, hidden := hideSecrets(newRoot(newCLI(t).app), argv, env)
		assert.Equal(t, hidden, tc.want != "", tc.argv)
		if !hidden {
			assert.DeepEqual(t, got, argv)
			assert.DeepEqual(t, gotEnv, env)
			continue
		}
		assert.Equal(t, strings.Join(got, " "), tc.want)
		assert.DeepEqual(t, gotEnv, []string{"HOME=/h", "ROOTLESSNODE_JOIN_TOKEN=" + tc.token})
		assert.DeepEqual(t, argv, strings.Fields(tc.argv)) // the input is not changed
		_, _, again := hideSecrets(newRoot(newCLI(t).app), got, gotEnv)
		assert.Assert(t, !again, "the result still has a token: %s", tc.argv)
	}
	_, _, hidden := hideSecrets(newRoot(newCLI(t).app), []string{"r", "up", "--token", "T"}, []string{"ROOTLESSNODE_JOIN_TOKEN=x"})
	assert.Assert(t, !hidden, "up reports the error of two tokens")
	assert.DeepEqual(t, env, []string{"HOME=/h"})
}

// TestEnterPassesTheToken checks that the entered command gets the token in its environment, not as an argument.
func TestEnterPassesTheToken(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.env[layout.EnvJoinToken] = testToken
	var got hostsetup.EnterOptions
	c.enter = func(o hostsetup.EnterOptions) (int, error) { got = o; return 7, nil }
	assert.Equal(t, c.run("host", "enter", "--user", "alice", "--", "up", "--join", "x"), 7)
	assert.DeepEqual(t, got.Args, []string{"up", "--join", "x"})
	assert.Assert(t, slices.Contains(got.Env, layout.EnvJoinToken+"="+testToken))
	assert.Equal(t, c.out.String()+c.err.String(), "")
}

// secretName matches the names of flags and fields that may be secrets.
var secretName = regexp.MustCompile(`(?i)token|secret|passw|credential|private|bearer`)

// notSecret are flags whose names match secretName, but whose values may be seen.
var notSecret = []string{"token-file"}

// TestSecretFlagsAreHidden checks that each flag whose name suggests a secret is marked as one, and that no value of such a flag
// stays in the command line or is printed. The configuration has no secrets, because it is written to the data dir.
func TestSecretFlagsAreHidden(t *testing.T) {
	t.Parallel()
	for _, f := range config.Fields() {
		assert.Check(t, !secretName.MatchString(f.Path[strings.LastIndexByte(f.Path, '.')+1:]), "%s: a secret must not be in the configuration", f.Path)
	}
	const secret = testToken
	hidden := 0
	var visit func(*cobra.Command)
	visit = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			key := f.Annotations[secretEnv]
			if key == nil {
				assert.Check(t, !secretName.MatchString(f.Name) || slices.Contains(notSecret, f.Name), "%s --%s: add it by secretFlag", cmd.CommandPath(), f.Name)
				return
			}
			hidden++
			for _, flag := range [][]string{{"--" + f.Name, secret}, {"--" + f.Name + "=" + secret}} {
				argv := append(strings.Fields(cmd.CommandPath()), append(flag, "--join", testServer)...)
				kept, env, ok := hideSecrets(newRoot(newCLI(t).app), argv, nil)
				assert.Check(t, ok && !strings.Contains(strings.Join(kept, " "), secret), "%v", kept)
				assert.DeepEqual(t, env, []string{key[0] + "=" + secret})
				for _, fails := range []string{"status", "start", "wait usable", "none"} {
					c := newCLI(t)
					c.env[key[0]], c.node.fails[fails], c.node.statuses = secret, errors.New("fails"), upStatuses()
					c.run(kept[1:]...)
					assert.Check(t, !strings.Contains(c.out.String()+c.err.String(), secret))
				}
			}
		})
		for _, sub := range cmd.Commands() {
			visit(sub)
		}
	}
	visit(newRoot(newCLI(t).app))
	assert.Assert(t, hidden > 0, "there is no secret flag")
}

func TestUpJoins(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.node.statuses = upStatuses()
	c.env[layout.EnvJoinToken] = testToken + "\n"
	assert.Equal(t, c.run("up", "--join", testServer, "--ca-cert-hash", testHash, "--ca-cert-hash", "x", "--node-ip", "192.0.2.2"), 0, c.err.String())
	assert.DeepEqual(t, c.node.cfg.Join, config.Join{Server: testServer, CACertHashes: []string{testHash, "x"}})
	assert.Equal(t, c.node.cfg.NodeIP, "192.0.2.2")
	assert.Equal(t, c.node.options.JoinToken, testToken)
	_, there := c.env[layout.EnvJoinToken]
	assert.Assert(t, !there, "child processes inherit the token")
	text, err := json.Marshal(c.node.cfg)
	assert.NilError(t, err)
	assert.Assert(t, !strings.Contains(string(text)+c.out.String()+c.err.String(), testToken))

	c = newCLI(t)
	c.node.statuses = upStatuses()
	assert.Equal(t, c.run("up", "--bootstrap-kubeconfig", "b"), 0, c.err.String())
	here, err := os.Getwd()
	assert.NilError(t, err)
	assert.Equal(t, c.node.cfg.Join.BootstrapKubeconfig, filepath.Join(here, "b"))
	assert.Equal(t, c.run("up", "--foreground", "--kubeconfig", "/k"), 0, c.err.String())
	assert.Equal(t, c.node.cfg.Join.Kubeconfig, "/k")
	assert.Equal(t, c.node.options.JoinToken, "")

	// A second execution does not read the flags again, because standard input can be read only once.
	c = newCLI(t)
	c.env[layout.EnvTakenToken] = testToken
	assert.Equal(t, c.run("up", "--foreground", "--join", testServer, "--token-file", "-"), 0, c.err.String())
	assert.Equal(t, c.node.options.JoinToken, testToken)
}

func TestTokenFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	assert.NilError(t, os.WriteFile(file, []byte(testToken+"\n"), 0o600))
	token, err := readTokenFile(file, nil)
	assert.NilError(t, err)
	assert.Equal(t, token, testToken)
	token, err = readTokenFile("-", strings.NewReader(" "+testToken+"\n"))
	assert.NilError(t, err)
	assert.Equal(t, token, testToken)
	_, err = readTokenFile("-", strings.NewReader("\n"))
	assert.ErrorContains(t, err, "standard input is empty")
	_, err = readTokenFile(file+"x", nil)
	assert.ErrorIs(t, err, fs.ErrNotExist)
	for _, mode := range []fs.FileMode{0o640, 0o604, 0o620} {
		assert.NilError(t, os.Chmod(file, mode))
		_, err = readTokenFile(file, nil)
		assert.ErrorContains(t, err, "is accessible to other users")
		assert.DeepEqual(t, errdefs.ReportOf(err).Hints, []string{"chmod 600 " + file})
	}
}

func TestOneTokenAndACluster(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		env  string
		args []string
		want string
	}{
		{testToken, []string{"--join", testServer, "--token", testToken}, "by ROOTLESSNODE_JOIN_TOKEN and --token"},
		{testToken, []string{"--join", testServer, "--token-file", "-"}, "by ROOTLESSNODE_JOIN_TOKEN and --token-file"},
		{"", []string{"--join", testServer, "--token", testToken, "--token-file", "f"}, "by --token and --token-file"},
		{"", []string{"--token", testToken}, "no cluster to join"},
		{testToken, nil, "no cluster to join"},
		{"", []string{"--kubeconfig", "/k", "--token", testToken}, "no cluster to join"},
		{"", []string{"--join", testServer, "--token-file", "/no/such"}, "read bootstrap token"},
	} {
		c := newCLI(t)
		if tc.env != "" {
			c.env[layout.EnvJoinToken] = tc.env
		}
		assert.Equal(t, c.run(append([]string{"up"}, tc.args...)...), errdefs.ExitConfig, "%v", tc.args)
		assert.Check(t, is.Contains(c.err.String(), tc.want))
		assert.Check(t, !strings.Contains(c.err.String(), testToken))
		assert.Check(t, is.Len(c.node.calls, 0))
	}
}

func TestTokenCreate(t *testing.T) {
	t.Parallel()
	made := node.JoinToken{Server: testServer, Token: testToken, Expires: at(3600), CACertHashes: []string{testHash}}
	command := "rootlessnode up --join " + testServer + " --token " + testToken + " --ca-cert-hash " + testHash
	c := newCLI(t)
	c.node.token = &made
	assert.Equal(t, c.run("token", "create", "--ttl", "2h", "--description", "for b"), 0, c.err.String())
	assert.DeepEqual(t, c.node.calls, []string{`create 2h0m0s "for b" "" false`})
	assert.Equal(t, c.out.String(), command+"\n")
	assert.Assert(t, is.Contains(c.err.String(), "the token is valid for one node until "))
	assert.Assert(t, !strings.Contains(c.err.String(), testToken))

	// `up` accepts the printed command.
	join := newCLI(t)
	join.node.statuses = upStatuses()
	argv, env, hidden := hideSecrets(newRoot(join.app), strings.Fields(command), nil)
	assert.Assert(t, hidden)
	join.env[layout.EnvJoinToken] = strings.TrimPrefix(env[0], layout.EnvJoinToken+"=")
	assert.Equal(t, join.run(argv[1:]...), 0, join.err.String())
	assert.Equal(t, join.node.options.JoinToken, testToken)
	assert.DeepEqual(t, join.node.cfg.Join, config.Join{Server: testServer, CACertHashes: []string{testHash}})

	c.out.Reset()
	assert.Equal(t, c.run("token", "create", "-o", "json"), 0)
	var got struct {
		node.JoinToken
		Command string
	}
	assert.NilError(t, json.Unmarshal(c.out.Bytes(), &got))
	assert.DeepEqual(t, got.JoinToken, made)
	assert.Equal(t, got.Command, command)

	made.NodeName = "b"
	c.out.Reset()
	assert.Equal(t, c.run("token", "create", "--node", "b"), 0)
	assert.Equal(t, c.node.calls[len(c.node.calls)-1], `create 1h0m0s "" "b" false`)
	assert.Equal(t, c.out.String(), command+" --set nodeName=b\n")
	assert.Equal(t, c.run("token", "create", "--reusable"), 0)
	assert.Equal(t, c.node.calls[len(c.node.calls)-1], `create 1h0m0s "" "" true`)

	assert.Equal(t, newCLI(t).run("token", "create", "--ttl", "0s"), errdefs.ExitConfig)
	c = newCLI(t)
	c.node.fails[`create 1h0m0s "" "" false`] = errdefs.Class(errdefs.ErrConfig, errors.New("not for other nodes"))
	assert.Equal(t, c.run("token", "create"), errdefs.ExitConfig)
	assert.Equal(t, c.out.String(), "")
}

func TestTokenListAndDelete(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.node.tokens = []kubeapi.BootstrapToken{
		{ID: "old111", Expires: at(0)}, {ID: "abc123", Expires: at(10 + 7200), Description: "for\nb", SingleUse: true}, {ID: "def456", NodeName: "c", SingleUse: true},
	}
	assert.Equal(t, c.run("token", "list"), 0)
	lines := strings.Split(strings.TrimSpace(c.out.String()), "\n")
	for i, want := range []string{"ID EXPIRES NODES DESCRIPTION", "old111 expired any number of nodes", "abc123 in 2h0m one node for b", "def456 never node c"} {
		assert.Equal(t, strings.Join(strings.Fields(lines[i]), " "), want)
	}
	c.out.Reset()
	assert.Equal(t, c.run("token", "list", "-o", "json"), 0)
	var got []kubeapi.BootstrapToken
	assert.NilError(t, json.Unmarshal(c.out.Bytes(), &got))
	assert.DeepEqual(t, got, c.node.tokens)

	c = newCLI(t)
	assert.Equal(t, c.run("token", "list", "-o", "json"), 0)
	assert.Equal(t, c.out.String(), "[]\n")

	c = newCLI(t)
	c.node.fails["delete def456"] = errdefs.Class(errdefs.ErrConfig, errors.New("not found"))
	assert.Equal(t, c.run("token", "delete", testToken, "def456", "ghi789"), errdefs.ExitConfig)
	assert.Equal(t, c.out.String(), "token abc123 deleted\ntoken ghi789 deleted\n")
	assert.Equal(t, c.err.String(), "error: not found\n")
}

func TestManifests(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.uid = 0 // administrators may be root
	assert.Equal(t, c.run("manifests", "join-rbac"), 0, c.err.String())
	want, err := resources.JoinRBAC(config.Default(), true)
	assert.NilError(t, err)
	assert.Equal(t, c.out.String(), string(want))

	c.out.Reset()
	assert.Equal(t, c.run("manifests", "join-rbac", "--network-policy"), 0, c.err.String())
	policies := config.Default()
	policies.NetworkPolicy = config.NetworkPolicyKube
	want, err = resources.JoinRBAC(policies, true)
	assert.NilError(t, err)
	assert.Equal(t, c.out.String(), string(want))
}

// TestClusterFactsAreClustersFields checks that the ConfigMap has the fields that a joining node reads.
func TestClusterFactsAreClustersFields(t *testing.T) {
	t.Parallel()
	cfg := config.Default()
	cfg.Network.IPv6 = true
	cfg.Complete(config.HostFacts{Hostname: "h", XDGDataHome: "/d"})
	data, err := resources.ClusterFacts(component.Env{Config: cfg})
	assert.NilError(t, err)
	var m corev1.ConfigMap
	assert.NilError(t, yaml.UnmarshalStrict(data, &m))
	fields := reflect.VisibleFields(reflect.TypeFor[membership.Cluster]())
	assert.Assert(t, is.Len(m.Data, len(fields)))
	for _, f := range fields {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		assert.Check(t, m.Data[name] != "", name)
		if f.Type.Kind() == reflect.Int {
			_, err := strconv.Atoi(m.Data[name])
			assert.NilError(t, err)
		}
	}
}

// newWorker returns a command line for a node that has joined a cluster and, unless stopped is set, is running.
func newWorker(t *testing.T, stopped bool) *cli {
	t.Helper()
	c := newCLI(t)
	c.answers, c.failures = map[string]string{"get": "node/devbox\n"}, map[string]error{}
	d := c.node.Data()
	for _, path := range []string{d.AdminKubeconfig(), d.BootstrapKubeconfig(), d.ClusterCA(), d.KubeletPKI() + "/x.pem", d.Log("node")} {
		assert.NilError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		assert.NilError(t, os.WriteFile(path, nil, 0o600))
	}
	assert.NilError(t, layout.WriteJSON(d.JoinRecord(), membership.Record{Server: testServer, NodeName: "devbox"}))
	if !stopped {
		c.node.statuses, c.joined = upStatuses(), config.Join{Server: testServer}
	}
	return c
}

func kubectlOf(c *cli, rest string) string {
	return "/components/kubectl --kubeconfig=" + c.node.Kubeconfig() + " " + rest
}

func TestDrainAndLeave(t *testing.T) {
	t.Parallel()
	c := newWorker(t, false)
	assert.Equal(t, c.run("drain-and-leave", "--timeout", "1m"), 0, c.err.String())
	assert.DeepEqual(t, c.executed, []string{
		kubectlOf(c, "get node devbox --ignore-not-found --output=name --request-timeout=15s"),
		kubectlOf(c, "drain devbox --ignore-daemonsets --delete-emptydir-data --timeout=1m0s"),
		kubectlOf(c, "delete node devbox --ignore-not-found --wait=false --request-timeout=15s"),
	})
	assert.DeepEqual(t, c.node.calls, []string{"status", "component", "stop", "delete"})
	assert.Equal(t, c.out.String(), "node devbox cordoned and drained (0.0s)\nNode object devbox deleted\n"+
		"node \"default\" stopped (0.0s)\ndeleted the node's data in "+c.node.dir+"\n")

	c = newWorker(t, false)
	c.answers["get"] = ""
	assert.Equal(t, c.run("drain-and-leave"), 0, c.err.String())
	assert.Assert(t, is.Len(c.executed, 1))
	assert.Assert(t, is.Contains(c.out.String(), "does not exist in the cluster any more"))
}

func TestLeaveKeepsDataButNoCredentials(t *testing.T) {
	t.Parallel()
	c := newWorker(t, false)
	assert.Equal(t, c.run("drain-and-leave", "--keep-data", "--force"), 0, c.err.String())
	assert.Assert(t, strings.HasSuffix(c.executed[1], " --force"), c.executed[1])
	assert.DeepEqual(t, c.node.calls, []string{"status", "component", "stop"})
	d := c.node.Data()
	for _, path := range []string{d.AdminKubeconfig(), d.BootstrapKubeconfig(), d.ClusterCA(), d.KubeletPKI(), d.JoinRecord()} {
		_, err := os.Stat(path)
		assert.ErrorIs(t, err, fs.ErrNotExist)
	}
	_, err := os.Stat(d.Log("node"))
	assert.NilError(t, err)
}

func TestLeaveStopsAtAnError(t *testing.T) {
	t.Parallel()
	for step, want := range map[string]string{
		"get": "drain-and-leave --force    # leaves without", "drain": "kubectl uncordon devbox", "delete": "kubectl delete node devbox\n",
	} {
		c := newWorker(t, false)
		c.failures[step] = errors.New("exit status 1")
		assert.Equal(t, c.run("drain-and-leave"), errdefs.ExitOther, step)
		assert.Assert(t, is.Contains(c.err.String(), want))
		assert.Assert(t, is.Contains(c.executed[len(c.executed)-1], " "+step+" "))
		assert.Assert(t, !slices.Contains(c.node.calls, "stop"), "%v", c.node.calls)
	}
	c := newWorker(t, false)
	c.node.fails["stop"] = errdefs.Class(errdefs.ErrTimeout, errors.New("it was killed"))
	assert.Equal(t, c.run("drain-and-leave"), errdefs.ExitTimeout)
	assert.Assert(t, is.Contains(c.err.String(), "hint: rootlessnode down --delete-data"))
	assert.Assert(t, !slices.Contains(c.node.calls, "delete"))
}

func TestLeaveWithoutTheCluster(t *testing.T) {
	t.Parallel()
	c := newWorker(t, false)
	c.failures["get"] = errors.New("exit status 1")
	assert.Equal(t, c.run("drain-and-leave", "--force"), 0, c.err.String())
	assert.Assert(t, is.Len(c.executed, 1))
	assert.DeepEqual(t, c.node.calls, []string{"status", "component", "stop", "delete"})
	assert.Assert(t, is.Contains(c.out.String(), "kubectl delete node devbox"))

	c = newWorker(t, true)
	assert.Equal(t, c.run("drain-and-leave"), errdefs.ExitOther)
	assert.Assert(t, is.Contains(c.err.String(), "is not running"))
	assert.DeepEqual(t, c.node.calls, []string{"status"})
	assert.Equal(t, c.run("drain-and-leave", "--force"), 0, c.err.String())
	assert.DeepEqual(t, c.node.calls, []string{"status", "status", "stop", "delete"})
	assert.Assert(t, is.Contains(c.out.String(), "kubectl delete node devbox"))
}

func TestControlPlaneDoesNotLeave(t *testing.T) {
	t.Parallel()
	for _, wasWorker := range []bool{false, true} {
		c := newCLI(t)
		if wasWorker {
			c.node.statuses = upStatuses()
			// The data of an earlier worker is left, but the running node is not a worker.
			assert.NilError(t, os.MkdirAll(filepath.Dir(c.node.Data().JoinRecord()), 0o700))
			assert.NilError(t, layout.WriteJSON(c.node.Data().JoinRecord(), membership.Record{}))
		}
		assert.Equal(t, c.run("drain-and-leave", "--force"), errdefs.ExitConfig)
		assert.Assert(t, is.Contains(c.err.String(), "has not joined a cluster"))
		assert.Assert(t, is.Contains(c.err.String(), "down --delete-data"))
		assert.DeepEqual(t, c.node.calls, []string{"status"})
	}
}

func TestExecuteProgram(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	assert.NilError(t, executeProgram(t.Context(), "/bin/sh", []string{"-c", "cat; echo done"}, &out))
	assert.Equal(t, out.String(), "done\n")
	assert.ErrorContains(t, executeProgram(t.Context(), "/bin/sh", []string{"-c", "exit 3"}, &out), "exit status 3")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	assert.ErrorIs(t, executeProgram(ctx, "/bin/sh", []string{"-c", "exec sleep 60"}, &out), context.DeadlineExceeded)
}
