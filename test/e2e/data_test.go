package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/datadir"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// upRefused starts the node with additional flags, expects one error and this exit code, and returns standard error.
func (n *testNode) upRefused(code int, flags ...string) string {
	n.t.Helper()
	_, stderr, got := n.try(upLimit, append(append([]string{"up"}, n.args...), flags...)...)
	assert.Equal(n.t, got, code, "%s", stderr)
	assert.Equal(n.t, strings.Count("\n"+stderr, "\nerror: "), 1, "%s", stderr)
	noTrace(n.t, n.name)
	return stderr
}

// foreignDataDirs checks that a directory with other data is refused as the data dir and is not changed.
func (n *testNode) foreignDataDirs() {
	home, err := os.UserHomeDir()
	assert.NilError(n.t, err)
	foreign := filepath.Join(n.t.TempDir(), "foreign")
	precious := filepath.Join(foreign, "precious.txt")
	assert.NilError(n.t, os.Mkdir(foreign, 0o755))
	assert.NilError(n.t, os.WriteFile(precious, nil, 0o600))
	assert.Assert(n.t, cmp.Contains(n.upRefused(errdefs.ExitConfig, "--data-dir", home), "is the home directory of the account"))
	assert.Assert(n.t, cmp.Contains(n.upRefused(errdefs.ExitConfig, "--data-dir", foreign), "it has precious.txt"))
	_, err = os.Stat(precious)
	assert.NilError(n.t, err)
	st, err := os.Stat(foreign)
	assert.NilError(n.t, err)
	assert.Equal(n.t, st.Mode().Perm(), os.FileMode(0o755), "a refused directory was changed")
}

// otherIDs checks that data that was created with other subordinate ids is refused before any component starts.
func (n *testNode) otherIDs() {
	d := layout.NewData(n.status().DataDir)
	var was datadir.Record
	assert.NilError(n.t, layout.ReadJSON(d.Record(), &was))
	changed := was
	changed.IDs.Subuids = []datadir.IDRange{{Start: 1 << 31, Count: 65536}}
	assert.NilError(n.t, layout.WriteJSON(d.Record(), changed))
	text := n.upRefused(errdefs.ExitPreflight)
	assert.Assert(n.t, cmp.Contains(text, "the subordinate uids were 2147483648-2147549183 and are now "))
	assert.Assert(n.t, cmp.Contains(text, "usermod --add-subuids 2147483648-2147549183 "))
	assert.NilError(n.t, layout.WriteJSON(d.Record(), was))
}

// upWithName starts the node. It checks that the first two starts have one Node object, although the host is renamed between them, and that
// the user can rename the Node object at the third.
func (n *testNode) upWithName(round int) {
	n.t.Helper()
	want, other := "first-name", ""
	args := n.args
	switch {
	case round == 0:
		args = append(args, "--set", "nodeName="+want)
	case round > 1:
		want, other = "second-name", want
		args = append(args, "--set", "nodeName="+want)
	}
	_, stderr, code := n.try(upLimit, append([]string{"up"}, args...)...)
	assert.Equal(n.t, code, errdefs.ExitOK, stderr)
	eventually(n.t, podLimit, "the Node object", func() error {
		if got := n.kubectl("get", "nodes", "-o", "jsonpath={.items[*].metadata.name}"); got != want {
			return fmt.Errorf("got %q, want %q", got, want)
		}
		return nil
	})
	switch round {
	case 0: // as if the host had this name
		assert.NilError(n.t, datadir.UpdateIdentity(layout.NewData(n.status().DataDir), func(i *datadir.Identity) { i.HostName = want }))
	case 1:
		assert.Assert(n.t, cmp.Contains(stderr, `was called "first-name", but the node keeps the name "first-name" of its Node object`))
	default:
		pods := n.kubectl("get", "pods", "-A", "-o", "jsonpath={.items[*].spec.nodeName}")
		assert.Assert(n.t, !strings.Contains(pods, other), pods)
	}
}

// changedSettings checks that other networks and a missing encryption key are refused together before anything starts.
func (n *testNode) changedSettings() {
	d := layout.NewData(n.status().DataDir)
	key := filepath.Join(d.PKI(), "encryption-config.yaml")
	assert.NilError(n.t, os.Rename(key, key+".away"))
	_, text, code := n.try(upLimit, "up", "--set", "cluster.serviceCIDR=10.60.0.0/16", "--set", "cluster.podCIDR=10.61.0.0/16",
		"--set", "cluster.domain=example.org")
	assert.Equal(n.t, code, errdefs.ExitConfig, text)
	assert.NilError(n.t, os.Rename(key+".away", key))
	assert.NilError(n.t, os.WriteFile(d.ManualPorts(), []byte(`{"format": 99}`), 0o600))
	assert.Assert(n.t, cmp.Contains(n.upRefused(errdefs.ExitConfig), d.ManualPorts()+": format 99 is newer"))
	assert.NilError(n.t, os.Remove(d.ManualPorts()))
	for _, want := range []string{
		"cluster.podCIDR: 10.61.0.0/16: the cluster of node \"e2e-again\" was created with 10.42.0.0/16",
		"cluster.serviceCIDR: 10.60.0.0/16: ", "cluster.domain: example.org: ", "encryption: the Secrets",
		"up --set cluster.podCIDR=10.42.0.0/16 --set cluster.serviceCIDR=10.43.0.0/16 --set cluster.domain=cluster.local",
	} {
		assert.Assert(n.t, cmp.Contains(text, want))
	}
}

// otherDataDir checks that down --delete-data deletes only the data dir of the last start, also if its path is a symbolic link.
func (n *testNode) otherDataDir() {
	first := n.status().DataDir
	root, err := filepath.EvalSymlinks(n.t.TempDir())
	assert.NilError(n.t, err)
	second, link := filepath.Join(root, "second"), filepath.Join(root, "link")
	assert.NilError(n.t, os.Mkdir(second, 0o755))
	assert.NilError(n.t, os.Symlink(second, link))
	n.run(upLimit, append(append([]string{"up"}, n.args...), "--data-dir", link)...)
	st, err := os.Stat(second)
	assert.NilError(n.t, err)
	assert.Equal(n.t, st.Mode().Perm(), os.FileMode(0o700))
	n.down()
	assert.Equal(n.t, n.status().DataDir, second)
	precious := filepath.Join(second, "precious.txt")
	assert.NilError(n.t, os.WriteFile(precious, nil, 0o600))
	out := n.run(downLimit, "down", "--delete-data")
	assert.Assert(n.t, cmp.Contains(out, "deleted the node's data in "+second+"\n"))
	assert.Assert(n.t, cmp.Contains(out, "  "+precious+"\n"))
	left, err := os.ReadDir(second)
	assert.NilError(n.t, err)
	assert.Equal(n.t, len(left), 1, "%v", left)
	assert.Equal(n.t, n.status().DataDir, first)
	_, err = os.Stat(layout.NewData(first).AdminKubeconfig())
	assert.NilError(n.t, err)
}
