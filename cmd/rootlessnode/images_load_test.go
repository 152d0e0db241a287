package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/criclient"
	"github.com/rootlessnode/rootlessnode/internal/nodeexec"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// fakeEngine puts a program on PATH that has one image, and removes all others from PATH. It records its arguments in the returned file.
func fakeEngine(t *testing.T, program, image string) (calls string) {
	t.Helper()
	dir := t.TempDir()
	calls = filepath.Join(dir, "calls")
	testutil.Script(t, filepath.Join(dir, program), fmt.Sprintf(`echo "$*" >>%s
		case $* in
		"image inspect "*) case $* in *nope*) echo "Error: nope: image not known" >&2; exit 1;; esac; echo '%s' ;;
		"save "*) case $* in *broken*) echo "Error: no space left" >&2; exit 1;; esac; echo archive ;;
		esac`, calls, image))
	t.Setenv("PATH", dir)
	return calls
}

// fakeImages makes the helper program list images and then return results in turn.
func (c *cli) fakeImages(t *testing.T, images string, results ...criclient.StoreResult) *[]string {
	t.Helper()
	requests := c.respond(t, results...)
	respond := c.node.exec
	c.node.exec = func(r nodeexec.Request) (int, error) {
		if r.Argv[1] == criclient.Images {
			_, err := r.Stdout.WriteString(images)
			return 0, err
		}
		return respond(r)
	}
	return requests
}

// TestImagesLoad checks the names of loaded images, and that an image that the node has only gets names.
func TestImagesLoad(t *testing.T) {
	c := newCLI(t)
	calls := fakeEngine(t, "podman", `[{"Id":"0123456789abcdef","RepoTags":["localhost/app:dev","localhost/other:1"]}]`)
	requests := c.fakeImages(t, "[]", imported("docker.io/library/app:dev"))
	assert.Equal(t, c.run("images", "load", "app:dev"), 0, c.err)
	assert.DeepEqual(t, *requests, []string{
		`import-images /run/containerd/containerd.sock {"names":["docker.io/library/app:dev","localhost/app:dev"]}<archive` + "\n",
	})
	assert.Equal(t, c.out.String(), "loaded docker.io/library/app:dev (3.0 MiB)\n")

	requests = c.fakeImages(t, `[{"id":"sha256:0123456789abcdef"}]`, imported("localhost/app:dev"))
	assert.Equal(t, c.run("images", "load", "0123456789ab"), 0, c.err)
	assert.DeepEqual(t, *requests, []string{
		`tag-image /run/containerd/containerd.sock {"id":"sha256:0123456789abcdef","names":["localhost/app:dev","localhost/other:1"]}`,
	})
	text, err := os.ReadFile(calls)
	assert.NilError(t, err)
	assert.Equal(t, strings.Count(string(text), "save "), 1, "the image was saved again")
}

func TestImagesLoadFaults(t *testing.T) {
	c := newCLI(t)
	fakeEngine(t, "docker", `[{"Id":"sha256:0123456789abcdef"}]`)
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"nope"}, errdefs.ExitOther, "load nope: no program has the image: docker: Error: nope: image not known"},
		{[]string{"broken"}, errdefs.ExitOther, "save broken with docker: Error: no space left"},
		{[]string{"0123456789ab"}, errdefs.ExitConfig, "it has no name"},
		{[]string{"App"}, errdefs.ExitConfig, "must be lowercase"},
		{[]string{"--from", "podman", "a"}, errdefs.ExitPreflight, "find podman: not installed"},
		{[]string{"--from", "x", "a"}, errdefs.ExitConfig, `--from: unknown program "x"`},
	} {
		c.err.Reset()
		c.fakeImages(t, "[]", criclient.StoreResult{Faults: []criclient.Fault{{Kind: criclient.FaultIncomplete, Message: "the archive is incomplete"}}})
		assert.Equal(t, c.run(append([]string{"images", "load"}, tc.args...)...), tc.code, c.err)
		assert.Check(t, is.Contains(c.err.String(), tc.want))
	}
}

func TestImagesBuild(t *testing.T) {
	c := newCLI(t)
	calls := fakeEngine(t, "podman", `[{"Id":"0123456789abcdef","RepoTags":["localhost/app:dev"]}]`)
	c.fakeImages(t, "[]", imported("docker.io/library/app:dev"))
	assert.Equal(t, c.run("images", "build", "-t", "app:dev", "-f", "File", "dir", "--", "--build-arg", "A=1"), 0, c.err)
	text, err := os.ReadFile(calls)
	assert.NilError(t, err)
	assert.Check(t, is.Contains(string(text), "build --tag app:dev --file File --build-arg A=1 dir\n"))
	assert.Check(t, is.Contains(c.out.String(), "loaded docker.io/library/app:dev"))
	for _, args := range [][]string{{"dir"}, {"-t", "App", "dir"}, {"-t", "app", "dir", "dir"}} {
		assert.Equal(t, c.run(append([]string{"images", "build"}, args...)...), errdefs.ExitConfig)
	}
}

// TestImagesPull checks that the account's logins are passed on standard input, and not as arguments.
func TestImagesPull(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	home := t.TempDir()
	assert.NilError(t, os.Mkdir(filepath.Join(home, ".docker"), 0o700))
	const login = `{"auths": {"registry.example": {"auth": "bWU6c2VjcmV0"}}}` // me:secret
	assert.NilError(t, os.WriteFile(filepath.Join(home, ".docker", "config.json"), []byte(login), 0o600))
	c.app.env = func(k string) string { return map[string]string{"HOME": home, "XDG_RUNTIME_DIR": home}[k] }
	var requests []string
	c.node.exec = func(r nodeexec.Request) (int, error) {
		text, err := io.ReadAll(r.Stdin)
		assert.NilError(t, err)
		requests = append(requests, strings.Join(r.Argv[1:], " ")+"<"+string(text))
		return 0, json.NewEncoder(r.Stdout).Encode(imported("registry.example/app:1"))
	}
	assert.Equal(t, c.run("images", "pull", "registry.example/app:1", "busybox"), 0, c.err)
	const command = "pull-image /run/containerd/containerd.sock "
	assert.DeepEqual(t, requests, []string{
		command + `{"name":"registry.example/app:1"}<[{"username":"me","password":"secret"}]`,
		command + `{"name":"docker.io/library/busybox:latest"}<[]`,
	})
	assert.Check(t, is.Contains(c.out.String(), "pulled registry.example/app:1 (3.0 MiB)\n"))
	assert.Equal(t, c.run("images", "pull", "App"), errdefs.ExitConfig)
	c.respond(t, criclient.StoreResult{Faults: []criclient.Fault{{Kind: criclient.FaultPull, Message: "not authorized"}}})
	assert.Equal(t, c.run("images", "pull", "app"), errdefs.ExitOther)
	assert.Check(t, is.Contains(c.err.String(), "error: pull docker.io/library/app:latest: not authorized"))
}
