package e2e

import (
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
