package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// completions returns what the program answers for a command line, without the descriptions. The last line is the directive.
func (c *cli) completions(t *testing.T, words ...string) []string {
	t.Helper()
	c.out.Reset()
	assert.Equal(t, c.run(append([]string{"__complete"}, words...)...), 0, c.err.String())
	var out []string
	for line := range strings.Lines(c.out.String()) {
		word, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		out = append(out, word)
	}
	return out
}

const (
	noFiles         = ":4"
	noSpaceNorFiles = ":6"
)

func TestCompletion(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.names = func() ([]string, error) { return []string{"default", "two"}, nil }
	c.node.statuses = []status.Status{{State: status.NodeReady, Ports: []status.Port{
		{Owner: "default/web/80"}, {Owner: "manual/8080:30080"}, {Owner: "manual/0.0.0.0:53:53/udp"},
	}}}
	for line, want := range map[string][]string{
		"--name|":                        {"default", "two", noFiles},
		"up|--name|":                     {"default", "two", noFiles},
		"down|":                          {noFiles},
		"up|--set|network.driv":          {"network.driver=", noSpaceNorFiles},
		"up|--set|cni=":                  {"cni=flannel", "cni=none", noFiles},
		"up|--set|network.slirpSandbox=": {"network.slirpSandbox=auto", "network.slirpSandbox=true", "network.slirpSandbox=false", noFiles},
		"up|--set|network.mtu=":          {noFiles},
		"up|--unset|network.mt":          {"network.mtu", noFiles},
		"up|--wait|":                     append(milestones(), noFiles),
		"ports|remove|":                  {"8080:30080", "0.0.0.0:53:53/udp", noFiles},
	} {
		assert.DeepEqual(t, c.completions(t, strings.Split(line, "|")...), want)
	}
	c.names = func() ([]string, error) { return nil, errors.New("damaged") }
	assert.DeepEqual(t, c.completions(t, "--name", ""), []string{noFiles})
	c.uid = 0
	assert.Assert(t, is.Contains(c.completions(t, "host", ""), "setup"), "root")
}

// Arguments of kubectl are completed by kubectl, with the node's kubeconfig.
func TestCompletionOfKubectl(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.names = func() ([]string, error) { return []string{"default", "two"}, nil }
	kubeconfig := "--kubeconfig=" + c.node.Kubeconfig()
	c.answers = map[string]string{kubeconfig: "web\trunning\nweb-2\n:36\n"}
	assert.DeepEqual(t, c.completions(t, "kubectl", "--name", "two", "-n", "shop", "get", "pods", "w"), []string{"web", "web-2", ":36"})
	assert.DeepEqual(t, c.executed, []string{"/components/kubectl __complete " + kubeconfig + " -n shop get pods w"})
	assert.Equal(t, c.name, "two")
	c.completions(t, "kubectl", "get", "--sh")
	assert.Equal(t, c.executed[1], "/components/kubectl __complete "+kubeconfig+" get --sh")
	assert.DeepEqual(t, c.completions(t, "kubectl", "--name", ""), []string{"default", "two", noFiles})
	c.answers = map[string]string{kubeconfig: "nonsense"}
	assert.DeepEqual(t, c.completions(t, "kubectl", "get", ""), []string{":1"})
	c.failures = map[string]error{kubeconfig: errors.New("no cluster")}
	assert.DeepEqual(t, c.completions(t, "kubectl", "get", ""), []string{":1"})
}

// TestBashCompletion presses Tab in a bash in which the package bash-completion is not loaded.
func TestBashCompletion(t *testing.T) {
	t.Parallel()
	testutil.Require(t, testutil.Program("bash"))
	dir := t.TempDir()
	c := newCLI(t)
	assert.Equal(t, c.run("completion", "bash"), 0)
	script := filepath.Join(dir, "completion")
	assert.NilError(t, os.WriteFile(script, c.out.Bytes(), 0o600))
	assert.NilError(t, os.WriteFile(filepath.Join(dir, "data.txt"), nil, 0o600))
	assert.NilError(t, os.Mkdir(filepath.Join(dir, "data"), 0o700))
	// The program prints its last argument, so that the words that bash passes to it can be checked.
	fake := `#!/bin/sh
for last; do :; done
case $last in
net) printf 'network.driver=\tthe driver\nnetwork.mtu=\tthe MTU\n:6\n' ;;
network.driver=*) printf 'network.driver=auto\nnetwork.driver=none\n:4\n' ;;
--name=*) printf 'default\ntwo\n:4\n' ;;
80:*) printf '80:8080\n:4\n' ;;
da) printf ':16\n' ;;
*) echo "unexpected: $*" >&2; printf 'bad\n:4\n' ;;
esac
`
	assert.NilError(t, os.WriteFile(filepath.Join(dir, "rootlessnode"), []byte(fake), 0o700))
	for line, want := range map[string]string{
		"rootlessnode up --set net":             "network.driver=  (the driver)|network.mtu=     (the MTU)",
		"rootlessnode up --set network.driver=": "auto|none",
		"rootlessnode  up  --name=t":            "two",
		"rootlessnode ports add 80:":            "8080",
		"rootlessnode up --data-dir da":         "data",
	} {
		words := strings.NewReplacer("=", " = ", ":", " : ").Replace(line)
		driver := `set -u; source "$1"; COMP_LINE=$2 COMP_POINT=${#2} COMP_TYPE=9 COLUMNS=80
read -ra COMP_WORDS <<< "$3"; COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
case $2 in *=|*:) COMP_WORDS+=(""); COMP_CWORD=$((COMP_CWORD + 1)) ;; esac
__start_rootlessnode; IFS='|'; echo "${COMPREPLY[*]-}"`
		cmd := exec.Command("bash", "--norc", "--noprofile", "-c", driver, "bash", script, line, words)
		cmd.Dir, cmd.Env = dir, []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		assert.NilError(t, err, "%s: %s", line, stderr.String())
		assert.Equal(t, strings.TrimSpace(string(out)), want, "%s: %s", strconv.Quote(line), stderr.String())
	}
}
