package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/docs"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// envEngines names the directory with the engines and the image of Debian, which `make test-engines` prepares: docker, the files of Debian's
// packages of Docker, and debian.tar.
const envEngines = "ROOTLESSNODE_E2E_ENGINES"

// enginesLimit limits the time for the commands of one engine. Most of it is for images.
var enginesLimit = patiently(5 * time.Minute)

// The scripts run as root in namespaces of their own, with the environment variables work, engines, out and account. likeHost makes a part of
// the machine look like a host with cgroup v2.
const (
	likeHost = `
mount --make-rprivate /
mount -t cgroup2 none /sys/fs/cgroup
ip link set lo up
cd "$work"
export CONTAINERS_CONF=$work/containers.conf BUILDAH_ISOLATION=chroot
`
	withPodman = likeHost + `
mount -t tmpfs none /run
mkdir -p "$work/storage" /var/lib/containers
mount --bind "$work/storage" /var/lib/containers
podman import "$engines/debian.tar" docker.io/library/debian:12
`
	withDocker = likeHost + `
mount -t tmpfs none /run
export PATH=$engines/docker/usr/bin:$engines/docker/usr/sbin:$PATH
dockerd --bridge=none --iptables=false --data-root="$work/docker" --exec-root=/run/docker >"$work/dockerd.log" 2>&1 &
for try in $(seq 300); do if docker version >/dev/null 2>&1; then break; fi; sleep 0.1; done
docker import "$engines/debian.tar" docker.io/library/debian:12
`
	// rootless enters the account, which runs the commands in its delegated cgroup.
	rootless = likeHost + `
exec "$out/bin/rootlessnode" host enter --user "$account" --command -- \
  env "HOME=$work/home" "XDG_RUNTIME_DIR=$work/home/run" "CONTAINERS_CONF=$CONTAINERS_CONF" BUILDAH_ISOLATION=chroot /bin/sh -eux "$work/account.sh" <"$engines/debian.tar"
`
	// asAccount reads the image from the standard input, because the account cannot read the directory.
	asAccount = `
podman import - docker.io/library/debian:12
`
)

// TestEngines runs the commands of docs/containers.md with the engines of Debian. They run in a network namespace without an uplink. The
// engines get the node's runc, and no limits for containers, because root of the machine may lack CAP_SYS_RESOURCE and cgroup controllers.
func TestEngines(t *testing.T) {
	if os.Getenv(envEngines) == "" {
		t.Skipf("%s is not set; run make test-engines", envEngines)
	}
	testutil.Require(t, built, testutil.Root, accounts(1), testutil.Program("podman"))
	page, err := docs.Page("containers.md")
	assert.NilError(t, err)
	for _, tc := range []struct {
		name, prepare string
		cgroups       []string // those that the engine leaves, without processes
	}{
		{"podman", withPodman, []string{"libpod_parent"}},
		{"docker", withDocker, []string{"docker", "rootlessnode-docker"}},
		{"rootless", "", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			work := engineDir(t, page)
			commands := markedCommands(t, page, "<!-- run: "+tc.name+" -->")
			assert.Assert(t, commands != "")
			script := tc.prepare + commands
			if tc.name == "rootless" {
				script = rootless
				text := "cd " + work + "\n" + asAccount + commands
				assert.NilError(t, os.WriteFile(filepath.Join(work, "account.sh"), []byte(text), 0o644))
				giveHome(t, work)
			}
			out := runEngine(t, work, script+leaveNoCgroups(tc.cgroups))
			assert.Assert(t, cmp.Contains(out, " is Ready after "))
			assert.Assert(t, cmp.Contains(out, "coredns"))
		})
	}
}

// engineDir creates the directory in which a user of the documentation is: with the Containerfile and the directory image.
func engineDir(t *testing.T, page string) string {
	t.Helper()
	work := t.TempDir()
	for _, dir := range []string{work, filepath.Dir(work)} {
		assert.NilError(t, os.Chmod(dir, 0o755))
	}
	_, rest, ok := strings.Cut(page, "<!-- file: Containerfile -->\n```Dockerfile\n")
	assert.Assert(t, ok)
	containerfile, _, _ := strings.Cut(rest, "```")
	assert.NilError(t, os.WriteFile(filepath.Join(work, "Containerfile"), []byte(containerfile), 0o644))
	image := filepath.Join(work, "image", "usr", "local")
	assert.NilError(t, os.MkdirAll(image, 0o755))
	for _, dir := range []string{"bin", "libexec", "share"} {
		out, err := exec.Command("cp", "-r", "--reflink=auto", filepath.Join(os.Getenv(envOut), dir), image).CombinedOutput()
		assert.NilError(t, err, "%s", out)
	}
	conf := fmt.Sprintf("[engine]\nruntime = \"runc\"\n[engine.runtimes]\nrunc = [%q]\n"+
		"[containers]\nnetns = \"none\"\npids_limit = 0\ndefault_ulimits = [\"nofile=4096:4096\", \"nproc=4096:4096\"]\n",
		filepath.Join(os.Getenv(envOut), "libexec/rootlessnode/runc"))
	assert.NilError(t, os.WriteFile(filepath.Join(work, "containers.conf"), []byte(conf), 0o644))
	return work
}

// giveHome creates a home directory for the account of the test.
func giveHome(t *testing.T, work string) {
	t.Helper()
	home := filepath.Join(work, "home")
	assert.NilError(t, os.Mkdir(home, 0o700))
	assert.NilError(t, os.Mkdir(filepath.Join(home, "run"), 0o700))
	out, err := exec.Command("chown", "-R", accountNames()[0], home).CombinedOutput()
	assert.NilError(t, err, "%s", out)
}

// runEngine runs a script in its own namespaces, whose processes end with it, and returns its output.
func runEngine(t *testing.T, work, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), enginesLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "--pid", "--mount-proc", "--net", "--ipc", "--uts", "--fork", "--kill-child", "/bin/sh", "-eux", "-c", script)
	cmd.WaitDelay = 5 * time.Second
	cmd.Env = append(cmd.Environ(), "work="+work, "engines="+os.Getenv(envEngines), "out="+os.Getenv(envOut), "account="+accountNames()[0])
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if log, lerr := os.ReadFile(filepath.Join(work, "dockerd.log")); err != nil && lerr == nil {
		t.Logf("dockerd:\n%s", log)
	}
	assert.NilError(t, err)
	return string(out)
}

// leaveNoCgroups returns commands that remove cgroups of an engine.
func leaveNoCgroups(names []string) string {
	var script strings.Builder
	for _, name := range names {
		fmt.Fprintf(&script, "if [ -d /sys/fs/cgroup/%[1]s ]; then find /sys/fs/cgroup/%[1]s -depth -type d -exec rmdir {} ';'; fi\n", name)
	}
	return script.String()
}
