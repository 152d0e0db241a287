package e2e

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/docs"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// runMark is the line before a block of commands in the documentation that the tests run.
const runMark = "<!-- run -->"

// docsImage is the image in the documentation. The test gives its own image this name.
const docsImage = "docker.io/library/busybox:1.37"

// documentation runs the marked commands of each page of the documentation, in the order of the page, as one script. The node and
// podman have the image of the documentation, because the tests reach no registry.
func (n *testNode) documentation() {
	testutil.Require(n.t, testutil.Program("podman"))
	n.t.Cleanup(n.resetPodman)
	n.podman("load", "--input", os.Getenv(envImage))
	n.podman("tag", testImage, docsImage)
	n.run(podLimit, "images", "import", os.Getenv(envImage), "--name", docsImage)
	names, err := fs.Glob(docs.Pages, "*.md")
	assert.NilError(n.t, err)
	for _, name := range names {
		page, err := docs.Page(name)
		assert.NilError(n.t, err)
		script := markedCommands(n.t, page, runMark)
		if script == "" {
			continue
		}
		n.t.Run(name, func(t *testing.T) { n.in(t).runScript(script) })
	}
}

// runScript runs a script in an empty directory, in which rootlessnode and kubectl are on PATH and act on the node.
func (n *testNode) runScript(script string) {
	n.t.Helper()
	bin := n.t.TempDir()
	kubectl := fmt.Sprintf("#!/bin/sh\nexec %s kubectl \"$@\"\n", binary("rootlessnode"))
	assert.NilError(n.t, os.WriteFile(filepath.Join(bin, "kubectl"), []byte(kubectl), 0o700))
	assert.NilError(n.t, os.Symlink(binary("rootlessnode"), filepath.Join(bin, "rootlessnode")))
	ctx, cancel := context.WithTimeout(context.Background(), podLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/bin/sh", "-eux", "-c", script)
	cmd.Dir, cmd.WaitDelay = n.t.TempDir(), 5*time.Second
	cmd.Env = append(cmd.Environ(), n.env...)
	cmd.Env = append(cmd.Env, layout.EnvName+"="+n.name, fmt.Sprintf("PATH=%s:%s", bin, os.Getenv("PATH")))
	out, err := cmd.CombinedOutput()
	assert.NilError(n.t, err, "%s", out)
	n.t.Logf("%s", out)
}

// markedCommands returns the lines of the code blocks of a page that follow a mark.
func markedCommands(t *testing.T, page, mark string) string {
	t.Helper()
	var script strings.Builder
	for i, part := range strings.Split(page, mark+"\n") {
		if i == 0 {
			continue
		}
		block, ok := strings.CutPrefix(part, "```sh\n")
		assert.Assert(t, ok, "no block of commands after %s:\n%.100s", mark, part)
		block, _, ok = strings.Cut(block, "\n```\n")
		assert.Assert(t, ok, "a block without an end:\n%.100s", part)
		script.WriteString(block + "\n")
	}
	return script.String()
}
