package e2e

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// imageRow is one row of `images list -o json`.
type imageRow struct {
	Name, Digest string
	Size         uint64
	Pinned       bool
}

// useImages imports and removes images, and uses an image whose content also has another name.
func (n *testNode) useImages(r *privateRegistry) {
	dir := n.t.TempDir()
	n.t.Run("preloaded", func(t *testing.T) { n.in(t).preloadedImages() })
	n.t.Run("names", func(t *testing.T) { n.in(t).imageNames(dir) })
	n.t.Run("unusable", func(t *testing.T) { n.in(t).unusableImages(dir) })
	n.t.Run("remove", func(t *testing.T) { n.in(t).removeImages() })
	n.t.Run("load", func(t *testing.T) { n.in(t).loadImages() })
	n.t.Run("two names", func(t *testing.T) { n.in(t).twoNames(r) })
}

// preloadImages puts archives into the directory of images that the node imports at its start.
func (n *testNode) preloadImages(home string) {
	dir := filepath.Join(home, ".local", "share", "rootlessnode", "images")
	assert.NilError(n.t, os.MkdirAll(dir, 0o700))
	for name, archive := range map[string][]byte{
		"good.tar.gz": zipped(n.t, dockerArchive(n.t, smallImage(n.t), "e2e-preloaded:1")),
		"broken.tar":  []byte("not an archive"), "README": []byte("not an archive either"),
	} {
		assert.NilError(n.t, os.WriteFile(filepath.Join(dir, name), archive, 0o600))
	}
}

// preloadedImages checks that the archives of the directory were imported, and that the status has a warning for the broken one.
func (n *testNode) preloadedImages() {
	row, ok := n.image("docker.io/library/e2e-preloaded:1")
	assert.Assert(n.t, ok && row.Pinned, "%+v", n.images())
	warnings := strings.Join(n.status().Warnings, "\n")
	assert.Check(n.t, is.Contains(warnings, "broken.tar: "))
	assert.Check(n.t, !strings.Contains(warnings, "README"))
}

func (n *testNode) images() []imageRow { n.t.Helper(); return answer[[]imageRow](n, "images", "list") }

func (n *testNode) image(name string) (imageRow, bool) {
	n.t.Helper()
	all := n.images()
	i := slices.IndexFunc(all, func(r imageRow) bool { return r.Name == name })
	if i < 0 {
		return imageRow{}, false
	}
	return all[i], true
}

// imageNames imports archives of both formats and checks the names of their images.
func (n *testNode) imageNames(dir string) {
	for _, tc := range []struct {
		name    string
		archive []byte
		args    []string
		want    []string
	}{
		{"short name of docker", dockerArchive(n.t, smallImage(n.t), "e2e-short:1"), nil, []string{"docker.io/library/e2e-short:1"}},
		{"gzip", zipped(n.t, dockerArchive(n.t, smallImage(n.t), "e2e-zipped:1")), nil, []string{"docker.io/library/e2e-zipped:1"}},
		{"name of podman", ociArchive(n.t, smallImage(n.t), "localhost/e2e-podman:1"), nil, []string{"localhost/e2e-podman:1"}},
		{"tag only", ociArchive(n.t, smallImage(n.t), "v1"), []string{"--name", "e2e-tag:2"}, []string{"docker.io/library/e2e-tag:2"}},
		{"no name", ociArchive(n.t, smallImage(n.t), ""), []string{"--name", "e2e-none", "--name", "example.test/none:1"},
			[]string{"docker.io/library/e2e-none:latest", "example.test/none:1"}},
		{"another name", dockerArchive(n.t, smallImage(n.t), "e2e-first:1"), []string{"--name", "e2e-second:1"}, []string{"docker.io/library/e2e-second:1"}},
	} {
		file := filepath.Join(dir, "image.tar")
		assert.NilError(n.t, os.WriteFile(file, tc.archive, 0o600))
		out := n.run(podLimit, append([]string{"images", "import", file}, tc.args...)...)
		for _, want := range tc.want {
			assert.Check(n.t, is.Contains(out, "imported "+want+" ("), tc.name)
			row, ok := n.image(want)
			assert.Check(n.t, ok && row.Size > 0 && row.Pinned, "%s: %s is not listed, or not pinned: %+v", tc.name, want, row)
		}
	}
	for _, unwanted := range []string{"docker.io/library/e2e-first:1", "rootlessnode.invalid"} {
		assert.Check(n.t, !strings.Contains(n.run(podLimit, "images", "list"), unwanted))
	}
	for _, row := range n.images() {
		if strings.HasPrefix(row.Name, "registry.k8s.io/") {
			assert.Check(n.t, row.Pinned, "%s, an image of the node itself, is not pinned", row.Name)
		}
	}
}

// unusableImages checks that archives of which nothing is usable are errors with a fix, and that nothing is left of them.
func (n *testNode) unusableImages(dir string) {
	good := dockerArchive(n.t, smallImage(n.t), "e2e-bad:1")
	other := withPlatform(n.t, smallImage(n.t), "s390x")
	before := n.run(podLimit, "images", "list")
	for _, tc := range []struct {
		name    string
		archive []byte
		want    string
	}{
		{"no name", ociArchive(n.t, smallImage(n.t), ""), "without a name"},
		{"tag only", ociArchive(n.t, smallImage(n.t), "v1"), `only with the tag "v1"`},
		{"other platform", dockerArchive(n.t, other, "e2e-bad:1"), "no image for linux/"},
		{"other platform, OCI", ociArchive(n.t, other, "e2e-bad:1"), "is for linux/s390x"},
		{"truncated", good[:len(good)/2], "incomplete"},
		{"truncated, compressed", zipped(n.t, good)[:200], "incomplete"},
		{"empty", nil, "empty"},
		{"text", bytes.Repeat([]byte("not an archive\n"), 1000), "not an image archive"},
	} {
		file := filepath.Join(dir, "image.tar")
		assert.NilError(n.t, os.WriteFile(file, tc.archive, 0o600))
		stdout, stderr, code := n.try(podLimit, "images", "import", file)
		assert.Check(n.t, is.Equal(code, errdefs.ExitOther), tc.name)
		assert.Check(n.t, is.Equal(stdout, ""), tc.name)
		assert.Check(n.t, is.Contains(stderr, tc.want), tc.name)
		assert.Check(n.t, is.Contains(stderr, "hint: "), tc.name)
	}
	assert.Equal(n.t, n.run(podLimit, "images", "list"), before)
}

// removeImages checks that an image is deleted with its last name, unless a container uses it.
func (n *testNode) removeImages() {
	n.run(podLimit, "images", "remove", "e2e-none")
	_, ok := n.image("example.test/none:1")
	assert.Assert(n.t, ok, "another name of the image was removed")
	n.run(podLimit, "images", "remove", "example.test/none:1", "e2e-tag:2")
	_, stderr, code := n.try(podLimit, "images", "remove", "e2e-none")
	assert.Equal(n.t, code, errdefs.ExitOther)
	assert.Assert(n.t, is.Contains(stderr, "not found"))
	assert.Assert(n.t, !strings.Contains(n.run(podLimit, "exec", "--", "ctr", "images", "list"), "e2e-tag"))
}

// loadImages builds images with podman, loads them, and runs a pod with the short name.
func (n *testNode) loadImages() {
	testutil.Require(n.t, testutil.Program("podman"))
	dir := n.t.TempDir()
	program, err := os.ReadFile("/bin/busybox")
	assert.NilError(n.t, err)
	assert.NilError(n.t, os.WriteFile(filepath.Join(dir, "busybox"), program, 0o700))
	const file = "FROM scratch\nCOPY busybox /bin/busybox\nENTRYPOINT [\"/bin/busybox\"]\nCMD [\"sleep\", \"1000\"]\n"
	assert.NilError(n.t, os.WriteFile(filepath.Join(dir, "Containerfile"), []byte(file), 0o600))
	n.t.Cleanup(n.resetPodman)
	n.podman("build", "--tag", "e2e-load:1", dir)
	for range 2 { // the second time, the node has the image
		out := n.run(podLimit, "images", "load", "e2e-load:1")
		assert.Equal(n.t, strings.Count(out, "loaded docker.io/library/e2e-load:1 (")+strings.Count(out, "loaded localhost/e2e-load:1 ("), 2, out)
	}
	n.kubectl("run", "loaded", "--image=e2e-load:1", "--image-pull-policy=Never", "--restart=Never")
	n.t.Cleanup(func() { n.kubectl("delete", "pod", "loaded", "--now") })
	n.waitPod("loaded")
	n.run(podLimit, "images", "build", "--tag", "e2e-built:1", dir, "--", "--label", "a=b")
	_, ok := n.image("docker.io/library/e2e-built:1")
	assert.Assert(n.t, ok)
	_, stderr, code := n.try(podLimit, "images", "load", "e2e-nope")
	assert.Equal(n.t, code, errdefs.ExitOther)
	assert.Assert(n.t, is.Contains(stderr, "no program has the image: podman: "))
}

// podman runs podman with the images of the node's home directory.
func (n *testNode) podman(args ...string) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), podLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "podman", args...)
	cmd.Env = append(cmd.Environ(), n.env...)
	out, err := cmd.CombinedOutput()
	assert.NilError(n.t, err, "podman %v: %s", args, out)
}

// resetPodman removes podman's images, and ends the process that keeps its user namespace.
func (n *testNode) resetPodman() { n.t.Helper(); n.podman("system", "reset", "--force") }

// twoNames checks that pods can use an image by the name under which it was imported, after the same content was pulled under another
// name, and that both names work when the registry refuses to serve the image.
func (n *testNode) twoNames(r *privateRegistry) {
	const imported = "docker.io/library/e2e-two-names:1"
	content := testImageFile(n.t, "two names")
	pulled := r.address + "/team/two-names:1"
	pushImage(n.t, pulled, content, r.options()...)
	file := filepath.Join(n.t.TempDir(), "image.tar")
	assert.NilError(n.t, os.WriteFile(file, dockerArchive(n.t, content, imported), 0o600))
	n.run(podLimit, "images", "import", file)

	login := filepath.Join(n.home(), ".docker", "config.json")
	assert.NilError(n.t, os.MkdirAll(filepath.Dir(login), 0o700))
	assert.NilError(n.t, os.WriteFile(login, []byte(dockerLogin(r.address, registryUser, registryPassword)), 0o600))
	n.pullImage(r)
	pod := func(name, image, policy string) {
		n.kubectl("run", name, "--image="+image, "--image-pull-policy="+policy, "--restart=Never", "--", "sleep", "1000")
	}
	pods := []string{"pulled", "imported-never", "imported-present", "pulled-never"}
	n.t.Cleanup(func() { n.kubectl(append([]string{"delete", "pod", "--now", "--ignore-not-found"}, pods...)...) })
	pod(pods[0], pulled, "IfNotPresent")
	n.waitPod(pods[0])
	assert.NilError(n.t, os.Remove(login))
	_, stderr, code := n.try(podLimit, "images", "pull", pulled)
	assert.Equal(n.t, code, errdefs.ExitOther)
	assert.Assert(n.t, is.Contains(stderr, "pull "+pulled+": "))
	pod(pods[1], imported, "Never")
	pod(pods[2], imported, "IfNotPresent")
	pod(pods[3], pulled, "Never")
	for _, name := range pods[1:] {
		n.waitPod(name)
	}
}

// pullImage pulls an image from the registry with the account's login.
func (n *testNode) pullImage(r *privateRegistry) {
	image := r.address + "/team/small:1"
	pushImage(n.t, image, smallImage(n.t), r.options()...)
	assert.Assert(n.t, is.Contains(n.run(podLimit, "images", "pull", image), "pulled "+image+" ("))
	row, ok := n.image(image)
	assert.Assert(n.t, ok && row.Pinned && strings.HasPrefix(row.Digest, "sha256:"), "%+v", row)
}
