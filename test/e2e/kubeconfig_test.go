package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"
)

// TestMain keeps the tests from changing the kubeconfig of the account. All nodes are deleted in the end, and their contexts with them.
func TestMain(m *testing.M) {
	if os.Getenv(envDevicePlugin) != "" {
		_, _ = fmt.Fprintln(os.Stderr, serveDevicePlugin())
		os.Exit(1)
	}
	dir, err := os.MkdirTemp("", "rootlessnode-e2e-")
	path := filepath.Join(dir, "kubeconfig")
	if err == nil {
		err = os.Setenv("KUBECONFIG", path)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	if left, err := os.ReadFile(path); err == nil && code == 0 {
		fmt.Fprintf(os.Stderr, "contexts of deleted nodes are left in KUBECONFIG:\n%s", left)
		code = 1
	}
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// othersKubeconfig is the kubeconfig of a user with another cluster.
const othersKubeconfig = `# maintained manually
apiVersion: v1
kind: Config
current-context: "work"
clusters:
  - name: work   # the big one
    cluster: {server: "https://127.0.0.1:1"}
contexts:
  - name: work
    context: {cluster: work, user: me}

users: []
`

// accountKubeconfig checks the context that up adds to the kubeconfig of the account, with kubectl and without rootlessnode.
func (n *testNode) accountKubeconfig() {
	home := ""
	for _, kv := range n.env {
		if value, ok := strings.CutPrefix(kv, "HOME="); ok {
			home = value
		}
	}
	path := filepath.Join(home, ".kube", "config")
	kubectl := func(args ...string) string {
		n.t.Helper()
		cmd := exec.CommandContext(n.t.Context(), filepath.Join(os.Getenv(envOut), "libexec", "rootlessnode", "kubectl"), args...)
		cmd.Env = append(cmd.Environ(), n.env...)
		out, err := cmd.CombinedOutput()
		assert.NilError(n.t, err, "%s", out)
		return string(out)
	}
	context := "rootlessnode-" + n.name
	assert.Equal(n.t, kubectl("config", "current-context"), context+"\n", "there was no other")
	assert.Equal(n.t, strings.Fields(kubectl("get", "nodes", "--no-headers"))[2], "control-plane,worker", "the roles")
	n.run(podLimit, "kubeconfig", "--unmerge")
	_, err := os.Stat(path)
	assert.Assert(n.t, os.IsNotExist(err), "up has created the file")

	assert.NilError(n.t, os.WriteFile(path, []byte(othersKubeconfig), 0o640))
	n.run(podLimit, "kubeconfig", "--merge")
	assert.Equal(n.t, kubectl("config", "current-context"), "work\n")
	assert.Assert(n.t, cmp.Contains(kubectl("--context", context, "get", "nodes", "-o", "name"), "node/"))
	n.run(podLimit, "kubeconfig", "--unmerge")
	text, err := os.ReadFile(path)
	assert.NilError(n.t, err)
	assert.Equal(n.t, string(text), othersKubeconfig)
	n.run(podLimit, "kubeconfig", "--merge")
}
