package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// The account in the container. The container shares its ids with the machine, where they are not in use.
const (
	boxUser      = "node"
	boxUID       = 2000000
	boxSubids    = "node:2100000:65536\n"
	boxLimit     = 30 * time.Second
	boxMark      = ".dockerenv" // identifies a Docker container; a Kubernetes container has a secret instead
	boxKubeMark  = "run/secrets/kubernetes.io/x"
	boxNewuidmap = "/usr/bin/newuidmap"
	boxHome      = "/srv/node" // inside
)

// box is a container that runc creates as an engine does without --privileged: with its own namespaces except for the user namespace,
// and with Docker's capabilities. The fields correspond to options of an engine.
type box struct {
	t    *testing.T
	host *fakeHost // its /sys/fs/cgroup is cgroup2
	name string
	dir  string // on that host, a tmpfs

	masked bool   // parts of /proc are covered or read-only
	cgroup string // rw or ro
	mark   string // a file that identifies the engine
}

// start creates and starts the container. It is removed when the test ends.
func (b *box) start() {
	t := b.t
	t.Helper()
	b.host = newHost(t, "private")
	b.dir = t.TempDir()
	b.name = fmt.Sprintf("rootlessnode-e2e-%d-%s", os.Getpid(), filepath.Base(t.Name()))
	b.host.do("mount", "-t", "tmpfs", "none", b.dir)
	b.host.do("mount", "-t", "cgroup2", "none", "/sys/fs/cgroup")
	b.rootFS()
	cgroup := b.at("/sys/fs/cgroup/" + b.name)
	t.Cleanup(func() {
		assert.Check(t, b.runc("delete", "--force", b.name))
		_, err := os.Stat(cgroup)
		assert.Check(t, cmp.ErrorIs(err, os.ErrNotExist))
	})
	for _, args := range [][]string{{"create", "--bundle", b.dir, b.name}, {"start", b.name}} {
		if err := b.runc(args...); err != nil {
			log, _ := os.ReadFile(b.at(b.dir + "/runc.log")) // best effort
			t.Fatalf("runc %v: %v\n%s", args, err, log)
		}
	}
}

// at returns the path on the machine of a path on the box's host.
func (b *box) at(path string) string { return fmt.Sprintf("/proc/%d/root%s", b.host.pid, path) }

// rootFS creates the container's root file system from the machine's /usr and a copy of its /etc, on overlays as engines do.
func (b *box) rootFS() {
	t := b.t
	t.Helper()
	for _, dir := range []string{"upper", "work", "usr-upper", "usr-work", "rootfs"} {
		assert.NilError(t, os.Mkdir(b.at(b.dir+"/"+dir), 0o755))
	}
	lower := b.at(b.dir + "/lower")
	for _, dir := range []string{"usr", "proc", "sys", "dev", "run", "srv", "opt", "root", "var/lib", "var/log", "var/tmp", "tmp", boxHome} {
		assert.NilError(t, os.MkdirAll(filepath.Join(lower, dir), 0o755))
	}
	for _, dir := range []string{"tmp", "var/tmp"} {
		assert.NilError(t, os.Chmod(filepath.Join(lower, dir), 0o777|os.ModeSticky))
	}
	assert.NilError(t, os.Chmod(filepath.Join(lower, boxHome), 0o700))
	assert.NilError(t, os.Chown(filepath.Join(lower, boxHome), boxUID, boxUID))
	b.host.do("cp", "-a", "/etc", b.dir+"/lower/")
	mounts := b.mounts()
	libs, err := filepath.Glob("/lib*")
	assert.NilError(t, err)
	for _, dir := range append(libs, "/bin", "/sbin") {
		if to, err := os.Readlink(dir); err == nil {
			assert.NilError(t, os.Symlink(to, lower+dir))
			continue
		}
		assert.NilError(t, os.Mkdir(lower+dir, 0o755))
		mounts = append(mounts, bind(dir))
	}
	assert.NilError(t, os.RemoveAll(filepath.Join(lower, "etc/protocols"))) // small images do not have it
	for path, text := range map[string]string{
		"etc/passwd": fmt.Sprintf("root:x:0:0::/:/bin/sh\n%s:x:%d:%d::%s:/bin/sh\n", boxUser, boxUID, boxUID, boxHome),
		"etc/group":  fmt.Sprintf("root:x:0:\n%s:x:%d:\n", boxUser, boxUID), "etc/subuid": boxSubids, "etc/subgid": boxSubids,
		"etc/hostname": "box\n", "etc/hosts": "127.0.0.1 localhost box\n", b.mark: "",
	} {
		file := filepath.Join(lower, path)
		assert.NilError(t, os.MkdirAll(filepath.Dir(file), 0o755))
		assert.NilError(t, os.RemoveAll(file)) // it may be a link
		assert.NilError(t, os.WriteFile(file, []byte(text), 0o644))
	}
	b.host.do("mount", "-t", "overlay", "overlay", "-o",
		fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", b.dir), b.dir+"/rootfs")
	config, err := json.Marshal(b.config(mounts))
	assert.NilError(t, err)
	assert.NilError(t, os.WriteFile(b.at(b.dir+"/config.json"), config, 0o644))
}

type object = map[string]any

func bind(path string) object {
	return object{"destination": path, "type": "bind", "source": path, "options": []string{"rbind", "ro"}}
}

func (b *box) mounts() []object {
	mount := func(at, kind string, options ...string) object {
		return object{"destination": at, "type": kind, "source": kind, "options": options}
	}
	return []object{
		mount("/proc", "proc", "nosuid", "noexec", "nodev"),
		mount("/dev", "tmpfs", "nosuid", "strictatime", "mode=755", "size=65536k"),
		mount("/dev/pts", "devpts", "nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"),
		mount("/dev/shm", "tmpfs", "nosuid", "noexec", "nodev", "mode=1777", "size=65536k"),
		mount("/dev/mqueue", "mqueue", "nosuid", "noexec", "nodev"),
		mount("/sys", "sysfs", "nosuid", "noexec", "nodev", "ro"),
		mount("/sys/fs/cgroup", "cgroup", "nosuid", "noexec", "nodev", b.cgroup),
		mount("/usr", "overlay", fmt.Sprintf("lowerdir=/usr,upperdir=%[1]s/usr-upper,workdir=%[1]s/usr-work", b.dir)),
		bind(os.Getenv(envOut)),
	}
}

// config returns the container's OCI runtime configuration.
func (b *box) config(mounts []object) object {
	var capabilities []string
	for _, c := range strings.Fields("AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID KILL MKNOD NET_BIND_SERVICE NET_RAW SETFCAP SETGID SETPCAP SETUID SYS_CHROOT") {
		capabilities = append(capabilities, "CAP_"+c)
	}
	var namespaces []object
	for _, kind := range []string{"pid", "mount", "ipc", "uts", "cgroup", "network"} {
		namespaces = append(namespaces, object{"type": kind})
	}
	linux := object{
		"namespaces": namespaces, "cgroupsPath": "/" + b.name,
		"resources": object{"devices": []object{ // runc adds the default devices and the TUN device
			{"allow": false, "access": "rwm"}, {"allow": true, "type": "c", "access": "m"}, {"allow": true, "type": "b", "access": "m"},
		}},
	}
	if b.masked {
		linux["maskedPaths"] = []string{"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
			"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats", "/sys/devices/virtual/powercap", "/sys/firmware"}
		linux["readonlyPaths"] = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
	}
	return object{
		"ociVersion": "1.2.0", "hostname": "box", "root": object{"path": "rootfs"}, "mounts": mounts, "linux": linux,
		"process": object{
			"user": object{"uid": 0, "gid": 0}, "cwd": "/", "args": []string{"/bin/sh", "-c", "trap exit TERM; sleep infinity & wait"},
			"env":          []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
			"capabilities": object{"bounding": capabilities, "effective": capabilities, "permitted": capabilities},
		},
	}
}

// command returns the command line of a runc command.
func (b *box) command(args ...string) []string {
	return slices.Concat(b.host.enter(), []string{filepath.Join(os.Getenv(envOut), "libexec/rootlessnode/runc"),
		"--root", b.dir + "/state", "--log", b.dir + "/runc.log"}, args)
}

// runc runs a runc command. It does not capture the output, because the container would keep the pipe open.
func (b *box) runc(args ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), boxLimit)
	defer cancel()
	argv := b.command(args...)
	return exec.CommandContext(ctx, argv[0], argv[1:]...).Run()
}

// root runs a program as root of the container.
func (b *box) root(args ...string) (output string, err error) {
	ctx, cancel := context.WithTimeout(b.t.Context(), boxLimit)
	defer cancel()
	argv := append(b.command("exec", b.name), args...)
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
	return string(out), err
}

// rows runs a script as root of the container and returns the lines of its output.
func (b *box) rows(script string) []string {
	b.t.Helper()
	out, err := b.root("/bin/sh", "-ec", script)
	assert.NilError(b.t, err, out)
	return strings.Fields(out)
}

// setup runs host setup for the account as root of the container.
func (b *box) setup() (output string, err error) {
	return b.root(binary("rootlessnode"), "host", "setup", "--user", boxUser)
}

// account returns a node of the account in the container. Commands run through root of the container, or directly as the account.
func (b *box) account(byRoot bool) *testNode {
	n := &testNode{t: b.t, name: "e2e-box", wrap: append(b.command("exec", b.name), binary("rootlessnode"), "host", "enter", "--user", boxUser, "--command", "--")}
	if !byRoot {
		n.wrap = b.command("exec", "--user", fmt.Sprintf("%d:%[1]d", boxUID), "--env", "HOME="+boxHome, "--env", "XDG_RUNTIME_DIR="+boxHome, b.name)
	}
	return n
}

// failing returns the failed checks of `check`, and the hints of all its findings.
func (n *testNode) failing() (checks []string, hints string) {
	n.t.Helper()
	out, stderr, code := n.try(boxLimit, "check", "-o", "json")
	var findings []struct{ Check, Level, Message, Hint string }
	assert.NilError(n.t, json.Unmarshal([]byte(out), &findings), "%s%s", out, stderr)
	for _, f := range findings {
		if f.Level == "fail" {
			checks = append(checks, f.Check)
			hints += f.Message + "\n" + f.Hint + "\n"
		}
	}
	assert.Equal(n.t, code == 3, len(checks) > 0, "exit code %d, %v", code, checks)
	return checks, hints
}

// TestContainer runs a node in a container that has everything a node needs, and then checks the findings for each missing requirement.
// The test itself acts as the engine, as root of the machine. There is no seccomp filter, so user namespaces can be created.
func TestContainer(t *testing.T) {
	t.Parallel()
	testutil.Require(t, built, testutil.Root)
	t.Run("node", boxWithNode)
	for name, tc := range map[string]struct {
		box    box
		owned  bool // the container's cgroup is delegated to the account when the container starts
		noRoot bool // root of the container does not run host setup
		noTun  bool
		want   []string
		hints  []string
	}{
		"masked": {box: box{masked: true, cgroup: "rw", mark: boxKubeMark}, want: []string{"proc"},
			hints: []string{"securityContext.procMount: Unmasked", "hostUsers: false"}},
		"readonly": {box: box{cgroup: "ro", mark: boxMark}, want: []string{"cgroup"},
			hints: []string{"--cgroupns=private --security-opt writable-cgroups=true"}},
		"notun": {box: box{cgroup: "rw", mark: boxMark}, noTun: true, want: []string{"tun"}, hints: []string{"docker run --device /dev/net/tun"}},
		"owned": {box: box{cgroup: "rw", mark: boxMark}, owned: true, noRoot: true, want: []string{"idmap-programs", "tun"},
			hints: []string{"setcap cap_setuid=ep " + boxNewuidmap, "host setup --user " + boxUser}},
		"defaults": {box: box{masked: true, cgroup: "ro", mark: boxMark}, noRoot: true, want: []string{"idmap-programs", "proc", "cgroup", "tun"},
			hints: []string{"systempaths=unconfined", "writable-cgroups=true", "--device /dev/net/tun", "setcap"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if slices.Contains(tc.want, "idmap-programs") {
				testutil.Require(t, setuidNewuidmap)
			}
			b := tc.box
			b.t = t
			b.start()
			if tc.owned {
				for _, file := range []string{"", "/cgroup.procs", "/cgroup.threads", "/cgroup.subtree_control"} {
					assert.NilError(t, os.Chown(b.at("/sys/fs/cgroup/"+b.name+file), boxUID, boxUID))
				}
			}
			if !tc.noRoot {
				out, err := b.setup()
				if b.cgroup == "ro" { // the error also says what to change
					assert.ErrorContains(t, err, "exit status 3")
					assert.Assert(t, cmp.Contains(out, tc.hints[0]))
				} else {
					assert.NilError(t, err, out)
				}
			}
			if tc.noTun {
				b.rows("rm /dev/net/tun")
			}
			n := b.account(!tc.noRoot && b.cgroup == "rw")
			checks, hints := n.failing()
			assert.DeepEqual(t, checks, tc.want)
			_, stderr, code := n.try(boxLimit, "up")
			assert.Equal(t, code, 3, stderr)
			for _, hint := range tc.hints {
				assert.Assert(t, cmp.Contains(hints, hint))
				assert.Assert(t, cmp.Contains(stderr, hint))
			}
			b.nothingLeft()
		})
	}
}

// setuidNewuidmap requires a set-uid newuidmap on the machine, which does not work in a container without CAP_SYS_ADMIN.
var setuidNewuidmap = testutil.Requirement{Name: "setuid-newuidmap", Check: func() error {
	var st unix.Stat_t
	if err := unix.Stat(boxNewuidmap, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_ISUID == 0 {
		return fmt.Errorf("%s is not set-uid root", boxNewuidmap)
	}
	return nil
}}

// boxPod is not privileged: a privileged pod needs a writable /sys, which an engine does not provide without --privileged.
const boxPod = `
apiVersion: v1
kind: Pod
metadata: {name: box}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: c, image: "rootlessnode.test/busybox:1", command: [/bin/sh, -c, "trap exit TERM; while true; do sleep 1; done"]}
`

func boxWithNode(t *testing.T) {
	t.Parallel()
	b := &box{t: t, cgroup: "rw", mark: boxMark}
	b.start()
	out, err := b.setup()
	assert.NilError(t, err, out)
	n := newNodeOf(t, "e2e-box", b.account(true).wrap)
	checks, hints := n.failing()
	assert.Equal(t, len(checks), 0, hints)
	n.up()
	n.importImage()
	n.apply(boxPod)
	n.waitPod("box")
	assert.Equal(t, n.sh("box", "id -u"), "0\n")
	// After a restart, kube-proxy recognizes its entries by this name and deletes the others.
	assert.Assert(t, cmp.Contains(n.run(podLimit, "exec", "--", "nft", "list", "map", "ip", "kube-proxy", "service-ips"), " . tcp . 443 : "))
	assert.Assert(t, cmp.Contains(n.status().Cgroup.Path, "/sys/fs/cgroup/rootlessnode/user-"))
	n.run(downLimit, "down", "--delete-data")
	b.nothingLeft()
}

// nothingLeft checks that no processes, cgroups or files of a node are left.
func (b *box) nothingLeft() {
	b.t.Helper()
	for _, p := range b.rows("cd /proc; for p in [0-9]*; do cat $p/comm 2>/dev/null || true; done") {
		assert.Check(b.t, slices.Contains([]string{"sh", "sleep", "cat"}, p), "a process %s is left", p)
	}
	prepared := fmt.Sprintf("rootlessnode/user-%d", boxUID)
	for _, dir := range b.rows("cd /sys/fs/cgroup; find . -mindepth 1 -type d -printf '%P\n'") {
		assert.Check(b.t, slices.Contains([]string{"rootlessnode", prepared, prepared + "/enter", "evac"}, dir), "a cgroup %s is left", dir)
	}
	left := b.rows(fmt.Sprintf("find /run/user/%d /tmp %[2]s/rootlessnode %[2]s/.local -mindepth 1 ! -type d 2>/dev/null || true", boxUID, boxHome))
	assert.Check(b.t, len(left) == 0, "left: %v", left)
}
