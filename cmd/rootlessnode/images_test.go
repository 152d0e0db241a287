package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
	"gotest.tools/v3/golden"

	"github.com/rootlessnode/rootlessnode/internal/criclient"
	"github.com/rootlessnode/rootlessnode/internal/nodeexec"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

const criImages = `[{"names":["registry.k8s.io/pause:3.10.2"],"digest":"sha256:3a86ee722e4f2a78a8e1f4dbd1f2a0d9c79e7b7f7d3b7de1b2c3d4e5f6071829","size":317542,"pinned":true},
{"digest":"sha256:0123456789","size":317542},{"names":["example.com/app:dev"],"digest":"sha256:99","size":12582912}]`

func TestImagesList(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	c.node.exec = func(r nodeexec.Request) (int, error) {
		_, err := r.Stdout.WriteString(criImages)
		return 0, err
	}
	assert.Equal(t, c.run("images", "list"), 0)
	golden.Assert(t, c.out.String(), "images.txt")
	c.out.Reset()
	assert.Equal(t, c.run("images", "list", "-o", "json"), 0)
	assert.Check(t, is.Contains(c.out.String(), `"size": 12582912,`), "sizes are numbers of bytes")

	c.node.exec = func(r nodeexec.Request) (int, error) {
		_, err := r.Stdout.WriteString("REF TYPE DIGEST SIZE PLATFORMS")
		return 0, err
	}
	assert.Equal(t, c.run("images", "list"), errdefs.ExitOther)
	assert.Check(t, is.Contains(c.err.String(), "read the output of rootlessnode-cri"))
}

// respond makes the helper program return results in turn. It returns its requests, each with the beginning of its standard input.
func (c *cli) respond(t *testing.T, results ...criclient.StoreResult) *[]string {
	t.Helper()
	var requests []string
	c.node.exec = func(r nodeexec.Request) (int, error) {
		text := strings.Join(r.Argv[1:], " ")
		if r.Stdin != nil {
			b := make([]byte, 10)
			n, _ := r.Stdin.Read(b) // at its end, nothing
			text += "<" + string(b[:n])
		}
		requests = append(requests, text)
		result := results[0]
		results = results[1:]
		return 0, json.NewEncoder(r.Stdout).Encode(result)
	}
	return &requests
}

func imported(name string) criclient.StoreResult {
	return criclient.StoreResult{Images: []criclient.Image{{Names: []string{name}, Digest: "sha256:1", Size: 3 << 20}}}
}

func TestImagesImport(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	file := filepath.Join(t.TempDir(), "a.tar")
	assert.NilError(t, os.WriteFile(file, []byte("archive"), 0o600))
	const command = "import-images /run/containerd/containerd.sock "
	requests := c.respond(t, imported("docker.io/library/a:1"), imported("docker.io/library/b:1"))
	assert.Equal(t, c.run("images", "import", file, "-"), 0)
	assert.DeepEqual(t, *requests, []string{command + "{}<archive", command + "{}<"})
	assert.Equal(t, c.out.String(), "imported docker.io/library/a:1 (3.0 MiB)\nimported docker.io/library/b:1 (3.0 MiB)\n")

	c.out.Reset()
	requests = c.respond(t, imported("docker.io/library/app:latest"))
	assert.Equal(t, c.run("images", "import", "-o", "json", "--name", "app", "--name", "localhost/app:dev", file), 0)
	assert.DeepEqual(t, *requests, []string{command + `{"names":["docker.io/library/app:latest","localhost/app:dev"]}<archive`})
	var list []image
	assert.NilError(t, json.Unmarshal(c.out.Bytes(), &list))
	assert.DeepEqual(t, list, []image{{Name: "docker.io/library/app:latest", Digest: "sha256:1", Size: 3 << 20}})
}

// TestImagesImportFaults checks that an archive of which nothing is usable is an error with a fix, and that the others are imported.
func TestImagesImportFaults(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "my image.tar")
	assert.NilError(t, os.WriteFile(file, []byte("archive"), 0o600))
	for kind, hint := range map[criclient.FaultKind]string{
		criclient.FaultName:       "rootlessnode images import --name NAME:TAG '" + file + "'",
		criclient.FaultFormat:     "docker save NAME | rootlessnode images import -",
		criclient.FaultIncomplete: "save the archive again",
		criclient.FaultPlatform:   "docker build --platform linux/",
		criclient.FaultSeveral:    "rootlessnode images import '" + file + "'",
	} {
		c.err.Reset()
		c.respond(t, criclient.StoreResult{Faults: []criclient.Fault{{Kind: kind, Message: "the reason"}}}, imported("docker.io/library/b:1"))
		assert.Equal(t, c.run("images", "import", file, "-"), errdefs.ExitOther)
		assert.Check(t, is.Contains(c.err.String(), "import "+file+": the reason"))
		assert.Check(t, is.Contains(c.err.String(), hint))
		assert.Check(t, is.Contains(c.out.String(), "imported docker.io/library/b:1"))
	}
	c.node.exec = func(nodeexec.Request) (int, error) { return 1, nil }
	assert.Equal(t, c.run("images", "import", file), errdefs.ExitOther)
	assert.Check(t, is.Contains(c.err.String(), "rootlessnode-cri exited with code 1"))
}

func TestImagesImportName(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	file := filepath.Join(t.TempDir(), "a.tar")
	assert.NilError(t, os.WriteFile(file, []byte("archive"), 0o600))
	assert.NilError(t, os.WriteFile(c.node.Data().Record(), nil, 0o600)) // a node of this name exists
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--name", "App:1", file}, "repository name (library/App) must be lowercase"},
		{[]string{"--name", "", file}, "invalid image name"},
		{[]string{"--name", "a:1", file, file}, "--name: got 2 archives, expected one"},
		{[]string{"--name", "two", file}, "rootlessnode --name two images import FILE"},
	} {
		c.err.Reset()
		assert.Equal(t, c.run(append([]string{"images", "import"}, tc.args...)...), errdefs.ExitConfig)
		assert.Check(t, is.Contains(c.err.String(), tc.want))
	}
	c.respond(t, imported("docker.io/library/two:latest"))
	assert.Equal(t, c.run("--name", "one", "images", "import", "--name", "two:latest", file), 0)
}

func TestImagesRemove(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	requests := c.respond(t, criclient.StoreResult{
		Images: []criclient.Image{{Names: []string{"docker.io/library/a:1"}, Size: 1 << 20}},
		Faults: []criclient.Fault{{Kind: criclient.FaultInUse, Message: "docker.io/library/b:1: in use by default/web"}},
	})
	assert.Equal(t, c.run("images", "remove", "a:1", "b:1"), errdefs.ExitOther)
	assert.DeepEqual(t, *requests, []string{`remove-images /run/containerd/containerd.sock {"names":["docker.io/library/a:1","docker.io/library/b:1"]}`})
	assert.Equal(t, c.out.String(), "removed docker.io/library/a:1 (1.0 MiB)\n")
	assert.Check(t, is.Contains(c.err.String(), "in use by default/web"))
	assert.Check(t, is.Contains(c.err.String(), "rootlessnode images remove --force NAME"))
	for _, args := range [][]string{{"A"}, {c.node.cfg.Containerd.PauseImage}} {
		assert.Equal(t, c.run(append([]string{"images", "remove"}, args...)...), errdefs.ExitConfig)
	}
}
