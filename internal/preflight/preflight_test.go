package preflight

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
	"gotest.tools/v3/golden"

	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/internal/trial"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestGoodHost(t *testing.T) {
	t.Parallel()
	f := goodHost(t)
	found := Run(t.Context(), f.in)
	assert.NilError(t, Err(found))
	var names []string
	for _, x := range found {
		assert.Equal(t, x.Level, LevelPass, "%s: %s", x.Check, x.Message)
		assert.Equal(t, x.Hint, "", x.Check)
		names = append(names, x.Check)
	}
	assert.DeepEqual(t, names, Names())
	assertGolden(t, f, found, "good.json")
}

func assertGolden(t *testing.T, f *fakeHost, found []Finding, file string) {
	t.Helper()
	found = slices.Clone(found)
	for i := range found {
		found[i].Render(actionWords)
	}
	b, err := json.MarshalIndent(found, "", "  ")
	assert.NilError(t, err)
	golden.Assert(t, f.anonymous(string(b))+"\n", file)
}

// TestBareHost: in a fresh container image nearly everything is missing, and one error reports all of it with one block of
// commands.
func TestBareHost(t *testing.T) {
	t.Parallel()
	f := goodHost(t)
	f.remove("etc/subuid")
	f.write("etc/subgid", "")
	for _, p := range []string{"newuidmap", "newgidmap", "ip", "iptables", "nft", "slirp4netns", "sudo"} {
		f.remove("bin/" + p)
	}
	f.remove("dev/net/tun")
	f.remove("run/user")
	f.in.Env = f.in.Env[:1]
	f.write("proc/sys/user/max_user_namespaces", "0\n")
	f.in.ComponentsDir, f.in.ComponentsTried = "", []string{"/usr/local/libexec/rootlessnode"}
	found := Run(t.Context(), f.in)
	assertGolden(t, f, found, "bare.json")

	err := Err(found)
	assert.ErrorIs(t, err, errdefs.ErrPreflight)
	r := errdefs.ReportOf(err)
	assert.Equal(t, r.Code, errdefs.ExitPreflight)
	assert.Equal(t, len(r.Hints), 1)
	golden.Assert(t, f.anonymous(r.Message+"\n\n"+r.Hints[0])+"\n", "bare.txt")
	assertShell(t, r.Hints[0])
}

// assertShell checks the shell syntax of a hint without running it.
func assertShell(t *testing.T, script string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "/bin/sh", "-n")
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	assert.NilError(t, err, "%s\n%s", out, script)
}

func TestRootCheckRunsAlone(t *testing.T) {
	t.Parallel()
	f := goodHost(t)
	f.in.UID = 0
	f.remove("etc/subuid")
	found := Run(t.Context(), f.in)
	assert.Equal(t, len(found), 1)
	assert.Equal(t, found[0].Check, "root")
	err := Err(found)
	assert.Error(t, err, "RN-ROOT: a node must be run by an ordinary user, not by root")
	assert.Equal(t, errdefs.ReportOf(err).Hints[0], `# once, to create a dedicated account:
as root, create and prepare the account rootlessnode
# then, each time:
as root, for account rootlessnode: start the node`)

	f.in.Probes.InUserNS = func() bool { return true }
	err = Err(Run(t.Context(), f.in))
	assert.Error(t, err, "RN-ROOT: a node must be run by an ordinary user, not by root, and this process is root in a user namespace")
	assert.Assert(t, strings.HasPrefix(errdefs.ReportOf(err).Hints[0], "# leave this user namespace (unshare,"))
	assertShell(t, errdefs.ReportOf(err).Hints[0])
}

func TestHintsFromJSON(t *testing.T) {
	t.Parallel()
	err := Err([]Finding{{Code: "RN-X", Level: LevelFail, Message: "no bridge", Hint: "modprobe bridge"}})
	assert.Error(t, err, "RN-X: no bridge")
	assert.DeepEqual(t, errdefs.ReportOf(err).Hints, []string{"modprobe bridge"})
}

// policies enables NetworkPolicies. plain and queue are the results of the probe for the two rules.
func policies(plain, queue error) func(*fakeHost) {
	return func(f *fakeHost) {
		f.set("networkPolicy", "kube-network-policies")
		f.write("proc/sys/net/bridge/bridge-nf-call-iptables", "1\n")
		f.in.Probes.PacketRules = func(_ context.Context, _, rules string) error {
			if strings.Contains(rules, "queue") {
				return queue
			}
			return plain
		}
	}
}

// Each case changes one property of the good host. The letter is the section of the case in the list of cases that users
// reported.
func TestChecks(t *testing.T) {
	t.Parallel()
	const setup = "  # or run all of the steps for root at once: sudo set-up-host dev\n"
	const local = "  # keep the data on a local disk: dataDir: /path/on/a/local/disk\n"
	for _, tc := range []struct {
		name, check string
		set         func(*fakeHost)
		want        string
	}{
		{"A1 no subuid row", "subids", func(f *fakeHost) { f.write("etc/subuid", "other:100000:65536\n") },
			"fail: dev (uid UID) has no subordinate ids: no row in /etc/subuid\n" +
				"  sudo usermod --add-subuids 231072-296607 dev\n" +
				"  # or add this row to /etc/subuid: dev:231072:65536\n" + setup},
		{"A1 no files", "subids", func(f *fakeHost) { f.remove("etc/subuid"); f.remove("etc/subgid") },
			"fail: dev (uid UID) has no subordinate ids: no row in /etc/subuid and /etc/subgid\n" +
				"  sudo usermod --add-subuids 100000-165535 dev\n" +
				"  sudo usermod --add-subgids 100000-165535 dev\n" +
				"  # or add this row to /etc/subuid and /etc/subgid: dev:100000:65536\n" + setup},
		{"A2 getsubids first", "subids", func(f *fakeHost) { f.remove("etc/subuid"); f.program("getsubids", "getsubids") },
			"pass: subordinate ids: uids 700000-765535, gids 700000-765535\n"},
		{"A2 getsubids fails", "subids", func(f *fakeHost) { f.program("getsubids", "fails") },
			"pass: subordinate ids: uids 165536-231071, gids 165536-231071\n"},
		{"A2 getsubids prints nothing", "subids", func(f *fakeHost) { f.program("getsubids", "silent") },
			"pass: subordinate ids: uids 165536-231071, gids 165536-231071\n"},
		{"A1 no subgid row", "subids", func(f *fakeHost) { f.write("etc/subgid", "") },
			"fail: dev (uid UID) has no subordinate ids: no row in /etc/subgid\n" +
				"  sudo usermod --add-subgids 231072-296607 dev\n" +
				"  # or add this row to /etc/subgid: dev:231072:65536\n" + setup},
		{"A2 static", "subids", func(f *fakeHost) { f.program("getsubids", "getsubids"); f.set("subids.source", "static") },
			"pass: subordinate ids: uids 165536-231071, gids 165536-231071\n"},
		{"A2 account of a directory service", "account", func(f *fakeHost) {
			f.write("etc/passwd", "")
			f.program("getent", "getent")
		}, "pass: account ldap, uid UID\n"},
		{"A2 no account", "account", func(f *fakeHost) { f.write("etc/passwd", "") },
			"fail: uid UID has no entry in passwd\n" +
				"  # newuidmap looks up the account by name: run as an account that `getent passwd` lists,\n  # or create one:\n" +
				"  getent passwd rootlessnode >/dev/null || sudo useradd --create-home --uid UID rootlessnode\n"},
		{"A3 the same row twice", "subids", func(f *fakeHost) { f.write("etc/subuid", "dev:165536:65536\ndev:165536:65536\n") },
			"pass: subordinate ids: uids 165536-231071 165536-231071, gids 165536-231071\n"},
		{"A3 overlap", "subids", func(f *fakeHost) { f.write("etc/subuid", "dev:165536:65536\n# x\ndev:200000:65536\n") },
			"fail: /etc/subuid line 1 (dev:165536:65536) and /etc/subuid line 3 (dev:200000:65536) overlap: the kernel rejects an id map that contains both\n" +
				"  # remove one of the two rows:\n  sudo sed -i '\\|^[[:space:]]*dev:200000:65536[[:space:]]*$|s|^|# |' /etc/subuid\n"},
		{"A3 shared with another", "subids", func(f *fakeHost) { f.write("etc/subuid", "other:100000:65536\ndev:100000:65536\n") },
			"warn: /etc/subuid line 2 (dev:100000:65536) shares ids with /etc/subuid line 1 (other:100000:65536): each account can access the other's files\n"},
		{"too few", "subids", func(f *fakeHost) { f.write("etc/subuid", "dev:165536:1000\n") },
			"fail: dev has 1000 subuids, but a node needs 65536\n  sudo usermod --add-subuids 100000-165535 dev\n" + setup},
		{"own id in the range", "subids", func(f *fakeHost) { f.write("etc/subgid", "dev:100:65536\n") },
			"warn: /etc/subgid line 1 (dev:100:65536) contains the account's own id 4000, which is left out\n"},
		{"an invalid row", "subids", func(f *fakeHost) { f.write("etc/subuid", "dev:165536:65536\noops\n") },
			"fail: /etc/subuid line 2 (oops) is not NAME:START:COUNT\n  sudo sed -i '\\|^[[:space:]]*oops[[:space:]]*$|s|^|# |' /etc/subuid\n"},
		{"A8 id-mapped home", "subids", func(f *fakeHost) {
			f.write("proc/self/mountinfo", "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n22 21 0:5 / "+f.root+" rw,nosuid,idmapped - ext4 /dev/x rw\n")
			f.write("etc/subgid", "dev:524288:65536\n")
		}, "fail: /etc/subuid line 2 (dev:165536:65536): the data dir /ROOT/data is on /ROOT, an id-mapped mount (systemd-homed), which allows only ids from 524288\n" +
			"  # give the account a range that begins at 524288 or later, or move the data elsewhere: dataDir: /var/lib/...\n"},
		{"A4 no privilege", "idmap-programs", func(f *fakeHost) {
			f.in.Probes.MayMapIDs = func(_ string, gids bool) (bool, error) { return gids, nil }
		}, "fail: no privilege to map ids: /ROOT/bin/newuidmap: needs set-uid root or a file capability\n" +
			"  sudo chown root:root /ROOT/bin/newuidmap && sudo chmod u+s /ROOT/bin/newuidmap\n"},
		{"A4 nosuid", "idmap-programs", func(f *fakeHost) { f.statfs(FileSystem{Flags: unix.ST_NOSUID}) },
			"fail: on a nosuid mount, where programs cannot gain privileges: /ROOT/bin/newuidmap, /ROOT/bin/newgidmap\n" +
				"  # install newuidmap and newgidmap on a file system that is mounted without nosuid, and add their directory to PATH\n"},
		{"A4 no_new_privs", "idmap-programs", func(f *fakeHost) { f.write("proc/self/status", "NoNewPrivs:\t1\n") },
			"fail: no_new_privs is set for this process: newuidmap and newgidmap cannot gain privileges\n" +
				"  # start the node without it: no NoNewPrivileges=yes in the unit,\n" +
				"  # no allowPrivilegeEscalation: false in the pod, no --security-opt no-new-privileges in the container\n"},
		{"A4 not there", "idmap-programs", func(f *fakeHost) { f.remove("bin/newuidmap") },
			"fail: not found on PATH: newuidmap\n  sudo apt-get install -y uidmap\n"},
		{"A4 not there, Fedora", "idmap-programs", func(f *fakeHost) {
			f.remove("bin/newuidmap")
			f.write("etc/os-release", "ID=rocky\nID_LIKE=\"rhel centos fedora\"\n")
		}, "fail: not found on PATH: newuidmap\n  sudo dnf install -y shadow-utils\n"},
		{"A4 not there, unknown distribution", "idmap-programs", func(f *fakeHost) {
			f.remove("bin/newuidmap")
			f.write("etc/os-release", "ID=mine\n")
		}, "fail: not found on PATH: newuidmap\n  # install these programs with your package manager: newuidmap\n"},
		{"in a container without CAP_SYS_ADMIN", "idmap-programs", func(f *fakeHost) {
			f.write("proc/self/status", "CapBnd:\t00000000a80425fb\n")
			f.fault(trial.StepMapUIDs, errors.New("newuidmap: write to uid_map failed: Operation not permitted"))
		}, "fail: newuidmap cannot map the account's ids: newuidmap: write to uid_map failed: Operation not permitted; " +
			"it is set-uid root, but root in this container does not have CAP_SYS_ADMIN\n" +
			"  # in the container or its image, use file capabilities instead of set-uid root:\n" +
			"  sudo setcap cap_setuid=ep /ROOT/bin/newuidmap\n  sudo chmod u-s /ROOT/bin/newuidmap\n" +
			"  sudo setcap cap_setgid=ep /ROOT/bin/newgidmap\n  sudo chmod u-s /ROOT/bin/newgidmap\n" + setup},
		{"ids cannot be mapped", "idmap-programs", func(f *fakeHost) {
			f.write("proc/self/status", "CapBnd:\t000001ffffffffff\n")
			f.in.Probes.Trial = func(_ context.Context, r trial.Request) (trial.Result, error) {
				return trial.Result{trial.StepMapGIDs: {Message: "no " + strings.Join(r.GIDs.Args, " ")}}, nil
			}
		}, "fail: newgidmap cannot map the account's ids: no 0 4000 1 1 165536 65536\n"},
		{"an engine's AppArmor profile", "proc", func(f *fakeHost) {
			f.write(".dockerenv", "")
			f.write("proc/self/attr/current", "docker-default (enforce)\n")
		}, "fail: the AppArmor profile docker-default of this container forbids mounting /proc, and all other mounts\n" +
			"  # start the container with other options:\n  # Docker: docker run --security-opt apparmor=unconfined\n"},
		{"tun that the engine keeps from the container", "tun", func(f *fakeHost) {
			f.write(".dockerenv", "")
			f.write("proc/self/status", "CapBnd:\t00000000a80425fb\n")
			f.remove("dev/net/tun")
		},
			"fail: /dev/net/tun: no such file or directory\n" +
				"  # start the container with other options:\n  # Docker: docker run --device /dev/net/tun\n" + setup},
		{"ids that the container does not have", "subids", func(f *fakeHost) {
			f.write(".dockerenv", "")
			f.write("proc/self/uid_map", "         0     100000      65536\n     65536     300000     100000\n")
			f.write("proc/self/gid_map", "         0          0 4294967295\n")
			f.write("etc/subuid", "dev:165530:65536\n")
		}, "fail: /etc/subuid line 1 (dev:165530:65536): not within the ids of this container, which are 0-165535\n" +
			"  # give the account a range of 65536 of these ids in /etc/subuid, or give the container more ids:\n" +
			"  # Docker with userns-remap: a larger range of dockremap in the host's /etc/subuid and /etc/subgid\n"},
		{"A5 AppArmor", "user-namespaces", func(f *fakeHost) {
			f.write("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n")
			f.write("proc/self/attr/current", "unconfined\n")
		}, `fail: kernel.apparmor_restrict_unprivileged_userns is 1 and no AppArmor profile lets /usr/local/bin/rootlessnode create user namespaces
  cat <<'EOF' | sudo tee /etc/apparmor.d/usr.local.bin.rootlessnode >/dev/null
  abi <abi/4.0>,
  include <tunables/global>
  
  profile usr.local.bin.rootlessnode "/usr/local/bin/rootlessnode" flags=(unconfined) {
    userns,
  }
  EOF
  sudo systemctl restart apparmor
` + setup},
		{"A5 AppArmor and a program that the account can replace", "user-namespaces", func(f *fakeHost) {
			f.write("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n")
			f.in.Probes.RootOnly = func(path string) error { return errors.New(path + " belongs to uid 7") }
		}, "fail: kernel.apparmor_restrict_unprivileged_userns is 1 and no AppArmor profile lets /usr/local/bin/rootlessnode create user namespaces\n" +
			"  # /usr/local/bin/rootlessnode belongs to uid 7: install below /usr/local first (make install), and start the node from there\n"},
		{"A5 AppArmor with our profile", "user-namespaces", func(f *fakeHost) {
			f.write("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1\n")
			f.write("proc/self/attr/current", "usr.local.bin.rootlessnode (unconfined)\n")
		}, "pass: user namespaces can be created\n"},
		{"A5 switched off: a chroot is named", "user-namespaces", func(f *fakeHost) {
			f.write("proc/sys/kernel/apparmor_restrict_unprivileged_userns", "0\n")
			f.in.Probes.CloneUserNS = func(context.Context) error { return &os.PathError{Op: "fork/exec", Path: "x", Err: unix.EPERM} }
		}, "fail: creating a user namespace is not permitted, as in a chroot: the root directory is not the root of the mount namespace\n" +
			"  # you are in a chroot: start outside of it, or enter the tree with pivot_root (unshare, systemd-nspawn), not with chroot\n"},
		{"A5 seccomp", "user-namespaces", func(f *fakeHost) {
			f.write(".dockerenv", "")
			f.write("proc/self/status", "Seccomp:\t2\n")
			f.in.Probes.CloneUserNS = func(context.Context) error { return unix.EPERM }
		}, "fail: a seccomp filter forbids creating user namespaces: this is a container or a sandbox\n" +
			"  # start the container with other options:\n  # Docker: docker run --security-opt seccomp=unconfined\n"},
		{"A6 none allowed", "user-namespaces", func(f *fakeHost) { f.write("proc/sys/user/max_user_namespaces", "0\n") },
			"fail: user.max_user_namespaces is 0: no user namespace can be created (clone returns ENOSPC)\n" +
				"  sudo sysctl -w user.max_user_namespaces=28633\n  grep -qsxF user.max_user_namespaces=28633 /etc/sysctl.d/99-rootlessnode.conf || echo user.max_user_namespaces=28633 | sudo tee -a /etc/sysctl.d/99-rootlessnode.conf >/dev/null\n" + setup},
		{"A6 few allowed", "user-namespaces", func(f *fakeHost) { f.write("proc/sys/user/max_user_namespaces", "100\n") },
			"warn: user.max_user_namespaces is 100: this is low: pods with their own user namespace may fail\n" +
				"  sudo sysctl -w user.max_user_namespaces=28633\n  grep -qsxF user.max_user_namespaces=28633 /etc/sysctl.d/99-rootlessnode.conf || echo user.max_user_namespaces=28633 | sudo tee -a /etc/sysctl.d/99-rootlessnode.conf >/dev/null\n" + setup},
		{"A6 all used", "user-namespaces", func(f *fakeHost) {
			f.in.Probes.CloneUserNS = func(context.Context) error { return unix.ENOSPC }
		}, "fail: no further user namespace can be created: nested too deep, or user.max_user_namespaces is used up\n" +
			"  sudo sysctl -w user.max_user_namespaces=28633\n  grep -qsxF user.max_user_namespaces=28633 /etc/sysctl.d/99-rootlessnode.conf || echo user.max_user_namespaces=28633 | sudo tee -a /etc/sysctl.d/99-rootlessnode.conf >/dev/null\n"},
		{"A6 Debian's switch", "user-namespaces", func(f *fakeHost) { f.write("proc/sys/kernel/unprivileged_userns_clone", "0\n") },
			"fail: kernel.unprivileged_userns_clone is 0: this kernel does not let ordinary users create user namespaces\n" +
				"  sudo sysctl -w kernel.unprivileged_userns_clone=1\n  grep -qsxF kernel.unprivileged_userns_clone=1 /etc/sysctl.d/99-rootlessnode.conf || echo kernel.unprivileged_userns_clone=1 | sudo tee -a /etc/sysctl.d/99-rootlessnode.conf >/dev/null\n" + setup},
		{"old kernel", "kernel", func(f *fakeHost) { f.write("proc/sys/kernel/osrelease", "4.14.0\n") },
			"fail: kernel 4.14.0 is older than 4.15\n"},
		{"kernel without IPv6", "kernel", func(f *fakeHost) { f.set("network.ipv6", "true"); f.remove("proc/sys/net/ipv6") },
			"fail: kernel 6.1.0-30-amd64 has no IPv6 (network.ipv6)\n  # start the host without ipv6.disable=1, or set network.ipv6: false\n"},
		{"kernel with IPv6", "kernel", func(f *fakeHost) { f.set("network.ipv6", "true"); f.write("proc/sys/net/ipv6/bindv6only", "0") },
			"pass: kernel 6.1.0-30-amd64\n"},
		{"modules built in", "modules", func(f *fakeHost) {}, "pass: kernel modules are loaded or built in\n"},
		{"no packet filter is loaded", "modules", func(f *fakeHost) {
			f.write("lib/modules/6.1.0-30-amd64/modules.dep", "kernel/nf_tables.ko.xz:\nkernel/br_netfilter.ko:\nkernel/veth.ko:\n")
			f.write("proc/modules", "ip_tables 16384 0 - Live 0x0\nveth 1 0 - Live 0x0\n")
		}, "fail: kernel modules are not loaded, so neither nftables nor iptables can be used: br_netfilter nf_tables\n" +
			"  sudo modprobe -a br_netfilter nf_tables\n  grep -qsxF br_netfilter /etc/modules-load.d/rootlessnode.conf || echo br_netfilter | sudo tee -a /etc/modules-load.d/rootlessnode.conf >/dev/null\n  grep -qsxF nf_tables /etc/modules-load.d/rootlessnode.conf || echo nf_tables | sudo tee -a /etc/modules-load.d/rootlessnode.conf >/dev/null\n" + setup},
		{"modules not loaded", "modules", func(f *fakeHost) {
			f.write("lib/modules/6.1.0-30-amd64/modules.dep", "kernel/nf_tables.ko.xz:\nkernel/br-netfilter.ko:\n")
			f.write("proc/modules", "nf_tables 16384 0 - Live 0x0\n")
		}, "warn: kernel modules are not loaded, and a user namespace may not be able to load them: br_netfilter\n" +
			"  sudo modprobe -a br_netfilter\n  grep -qsxF br_netfilter /etc/modules-load.d/rootlessnode.conf || echo br_netfilter | sudo tee -a /etc/modules-load.d/rootlessnode.conf >/dev/null\n" + setup},
		{"kernel without overlayfs", "kernel", func(f *fakeHost) { f.write("proc/sys/kernel/osrelease", "5.10.0-30-amd64\n") },
			"warn: kernel 5.10.0-30-amd64 cannot mount overlayfs in a user namespace (since 5.11): the node uses fuse-overlayfs or plain copies instead\n" +
				"  sudo apt-get install -y fuse-overlayfs\n"},
		{"overlayfs requested", "kernel", func(f *fakeHost) {
			f.write("proc/sys/kernel/osrelease", "5.4.0\n")
			f.set("containerd.snapshotter", "overlayfs")
		}, "fail: kernel 5.4.0 cannot mount overlayfs in a user namespace (since 5.11)\n  # let the node choose: containerd.snapshotter: auto\n"},
		{"B5 no linger", "linger", func(f *fakeHost) { f.dir("run/systemd/system", 0o755) },
			"warn: linger is not enabled: logind stops the node when dev's last session ends\n  sudo loginctl enable-linger dev\n" + setup},
		{"B5 linger", "linger", func(f *fakeHost) { f.dir("run/systemd/system", 0o755); f.write("var/lib/systemd/linger/dev", "") },
			"pass: linger is enabled: the node keeps running after logout\n"},
		{"no linger, elogind", "linger", func(f *fakeHost) { f.dir("run/systemd/seats", 0o755); f.write("usr/libexec/elogind/elogind", "") },
			"warn: linger is not enabled: elogind removes the node's sockets when dev's last session ends\n  sudo loginctl enable-linger dev\n" + setup},
		{"linger, elogind", "linger", func(f *fakeHost) {
			f.dir("run/systemd/seats", 0o755)
			f.write("usr/libexec/elogind/elogind", "")
			f.write("var/lib/elogind/linger/dev", "")
		},
			"pass: linger is enabled: the node keeps running after logout\n"},
		{"C1 controllers missing", "cgroup", func(f *fakeHost) {
			f.in.Probes.Delegation = func() (cgroupv2.Host, cgroupv2.Delegation, error) {
				return cgroupv2.Host{}, cgroupv2.Delegation{Root: "/sys/fs/cgroup/u", Source: cgroupv2.SourceCurrent,
					Available: []string{"memory", "pids"}, Missing: []string{"cpu", "cpuset"}, LostAt: "/sys/fs/cgroup/u"}, nil
			}
		}, "warn: cgroup /sys/fs/cgroup/u (current) lacks cpu, cpuset: the node starts, but does not enforce limits that need these controllers\n" +
			"  # cpu is not delegated to /sys/fs/cgroup/u. Have systemd delegate it:\n" +
			"  sudo mkdir -p /etc/systemd/system/user@.service.d\n" +
			"  printf \"[Service]\\nDelegate=cpu cpuset io memory pids\\n\" | sudo tee /etc/systemd/system/user@.service.d/delegate.conf\n" +
			"  sudo systemctl daemon-reload\n" +
			"  # then log out and in.\n"},
		{"C4 none at all", "cgroup", func(f *fakeHost) {
			f.in.Probes.Delegation = func() (cgroupv2.Host, cgroupv2.Delegation, error) {
				return cgroupv2.Host{}, cgroupv2.Delegation{}, errdefs.WithHint(errors.New("no cgroup v2 tree on this host"), "# Boot otherwise:\nsudo reboot")
			}
		}, "fail: no cgroup v2 tree on this host\n  # Boot otherwise:\n  sudo reboot\n"},
		{"programs", "programs", func(f *fakeHost) {
			f.remove("bin/ip")
			f.remove("bin/umount")
			f.remove("bin/nft")
			f.remove("bin/iptables")
		},
			"fail: not found on PATH: ip, umount, nft\n  sudo apt-get install -y iproute2 mount nftables\n"},
		{"no policies", "network-policy", func(*fakeHost) {}, "pass: not enabled: the node does not enforce NetworkPolicies\n"},
		{"policies", "network-policy", policies(nil, nil), "pass: the kernel can pass packets to kube-network-policies (nft_queue, br_netfilter)\n"},
		{"policies without nft_queue", "network-policy", policies(nil, errors.New("Could not process rule: No such file or directory")),
			"fail: the kernel does not support nftables' queue expression (CONFIG_NFT_QUEUE), which kube-network-policies needs: " +
				"Could not process rule: No such file or directory\n" +
				"  sudo modprobe -a nft_queue nfnetlink_queue\n  grep -qsxF nft_queue /etc/modules-load.d/rootlessnode.conf || echo nft_queue | sudo tee -a /etc/modules-load.d/rootlessnode.conf >/dev/null\n  grep -qsxF nfnetlink_queue /etc/modules-load.d/rootlessnode.conf || echo nfnetlink_queue | sudo tee -a /etc/modules-load.d/rootlessnode.conf >/dev/null\n" +
				"  # if there are no such modules: use a kernel with CONFIG_NFT_QUEUE and CONFIG_NETFILTER_NETLINK_QUEUE, such as those of\n" +
				"  # the distributions, or disable network policies: --set networkPolicy=none\n"},
		{"policies where nothing can be tried", "network-policy", policies(errors.New("operation not permitted"), errors.New("x")),
			"warn: cannot test whether the kernel supports nftables' queue expression: operation not permitted\n"},
		{"policies past the bridge", "network-policy", func(f *fakeHost) { policies(nil, nil)(f); f.remove("proc/sys/net/bridge") },
			"fail: the kernel module br_netfilter is not loaded: traffic between pods of the node would bypass their policies\n" +
				"  sudo modprobe -a br_netfilter\n  grep -qsxF br_netfilter /etc/modules-load.d/rootlessnode.conf || echo br_netfilter | sudo tee -a /etc/modules-load.d/rootlessnode.conf >/dev/null\n" + setup},
		{"policies without nft", "network-policy", func(f *fakeHost) { policies(nil, nil)(f); f.remove("bin/nft") },
			"fail: not found on PATH: nft\n  sudo apt-get install -y nftables\n"},
		{"nftables requested", "programs", func(f *fakeHost) { f.remove("bin/nft"); f.set("kubeProxy.mode", "nftables") },
			"fail: not found on PATH: nft\n  sudo apt-get install -y nftables\n"},
		{"no iptables", "programs", func(f *fakeHost) { f.remove("bin/iptables") },
			"pass: ip, mount, nft are installed\n"},
		{"iptables only", "programs", func(f *fakeHost) { f.remove("bin/nft") }, "pass: ip, mount, iptables are installed\n"},
		{"H1 auto", "network-program", func(*fakeHost) {}, "pass: network driver auto: slirp4netns version 1.2.3\n"},
		{"H1 auto without slirp4netns", "network-program", func(f *fakeHost) { f.remove("bin/slirp4netns") },
			"pass: network driver auto: gvisor-tap-vsock, built in (no slirp4netns on PATH)\n"},
		{"slirp4netns does not run", "network-program", func(f *fakeHost) { f.program("slirp4netns", "fails") },
			"fail: network driver auto: /ROOT/bin/slirp4netns --version: slirp4netns: error while loading shared libraries\n" +
				"  sudo apt-get install -y slirp4netns\n  # or use the built-in driver: network.driver: gvisor-tap-vsock\n"},
		{"pasta not there", "network-program", func(f *fakeHost) { f.set("network.driver", "pasta") },
			"fail: network driver pasta: program not found on PATH\n  sudo apt-get install -y passt\n" +
				"  # or use the built-in driver: network.driver: gvisor-tap-vsock\n"},
		{"lxc-user-nic off PATH", "network-program", func(f *fakeHost) {
			f.set("network.driver", "lxc-user-nic")
			f.write("usr/lib/x86_64-linux-gnu/lxc/lxc-user-nic", "")
			f.write("etc/lxc/lxc-usernet", "# who\n@admins veth br0 1\ndev veth lxcbr0 10\n")
			f.write("sys/class/net/lxcbr0/bridge/stp_state", "0")
		}, "pass: network driver lxc-user-nic: /ROOT/usr/lib/x86_64-linux-gnu/lxc/lxc-user-nic\n"},
		{"lxc-user-nic, no permission", "network-program", func(f *fakeHost) {
			f.set("network.driver", "lxc-user-nic")
			f.program("lxc-user-nic", "answers")
			f.write("etc/lxc/lxc-usernet", "dev veth other 10\nelse veth lxcbr0 1\n")
		}, "fail: network driver lxc-user-nic: no row of /etc/lxc/lxc-usernet allows dev an interface on lxcbr0\n" +
			"  sudo set-up-host dev lxc-user-nic=lxcbr0\n"},
		{"lxc-user-nic, nothing set up", "network-program", func(f *fakeHost) {
			f.set("network.driver", "lxc-user-nic")
			f.program("lxc-user-nic", "answers")
		}, "fail: network driver lxc-user-nic: /etc/lxc/lxc-usernet: no such file or directory\n" +
			"  sudo set-up-host dev lxc-user-nic=lxcbr0\n"},
		{"lxc-user-nic, no bridge", "network-program", func(f *fakeHost) {
			f.set("network.driver", "lxc-user-nic")
			f.program("lxc-user-nic", "answers")
			f.write("etc/lxc/lxc-usernet", "@dev veth lxcbr0 10\n")
		}, "fail: network driver lxc-user-nic: the host has no bridge lxcbr0 (network.lxcBridge)\n" +
			"  sudo set-up-host dev lxc-user-nic=lxcbr0\n"},
		{"lxc-user-nic, a bridge without DHCP", "network-program", func(f *fakeHost) {
			f.set("network.driver", "lxc-user-nic")
			f.program("lxc-user-nic", "answers")
			f.write("etc/lxc/lxc-usernet", "dev veth lxcbr0 10\n")
			f.write("sys/class/net/lxcbr0/bridge/stp_state", "0")
			f.write("run/lxc/dnsmasq.pid", "2147483646\n") // over the kernel's limit of 2^22
		}, "fail: network driver lxc-user-nic: the DHCP server of the bridge lxcbr0 is not running " +
			"(dnsmasq, pid 2147483646 in /run/lxc/dnsmasq.pid) (network.lxcBridge)\n" +
			"  sudo set-up-host dev lxc-user-nic=lxcbr0\n"},
		{"pesto not there", "network-program", func(f *fakeHost) {
			f.set("ports.driver", "pesto")
			f.program("pasta", "answers")
		}, "pass: network driver pasta: pasta version 1.2.3\n" +
			"fail: port driver pesto: program not found on PATH; it is part of passt 2026_05_07 or later\n" +
			"  # or use another port driver: ports.driver: builtin\n"},
		{"pesto", "network-program", func(f *fakeHost) {
			f.set("ports.driver", "pesto")
			f.program("pasta", "answers")
			f.program("pesto", "answers")
		}, "pass: network driver pasta: pasta version 1.2.3\npass: port driver pesto: pasta supports --conf-path\n"},
		{"built-in driver", "network-program", func(f *fakeHost) { f.set("network.driver", "gvisor-tap-vsock") },
			"pass: network driver gvisor-tap-vsock needs no program\n"},
		{"no tun", "tun", func(f *fakeHost) { f.remove("dev/net") },
			"fail: /dev/net/tun: no such file or directory\n  sudo modprobe -a tun\n  grep -qsxF tun /etc/modules-load.d/rootlessnode.conf || echo tun | sudo tee -a /etc/modules-load.d/rootlessnode.conf >/dev/null\n  sudo mkdir -p /dev/net\n" +
				"  test -c /dev/net/tun || sudo mknod -m 0666 /dev/net/tun c 10 200\n" + setup},
		{"a veth needs no tun", "tun", func(f *fakeHost) { f.remove("dev/net"); f.set("network.driver", "lxc-user-nic") },
			"pass: network driver lxc-user-nic needs no /dev/net/tun\n"},
		{"no uplink needs no tun", "tun", func(f *fakeHost) { f.remove("dev/net"); f.set("network.driver", "none") },
			"pass: network driver none needs no /dev/net/tun\n"},
		{"E7 noexec", "data-dir", func(f *fakeHost) { f.statfs(FileSystem{Flags: unix.ST_NOEXEC | unix.ST_NODEV}) },
			"fail: data dir /ROOT/data is on a mount with nodev,noexec: programs in images cannot be run\n" + local},
		{"E8 nosuid", "data-dir", func(f *fakeHost) { f.statfs(FileSystem{Flags: unix.ST_NOSUID | unix.ST_NODEV}) },
			"warn: data dir /ROOT/data is on a mount with nosuid,nodev: set-uid programs in images (sudo, ping) lose their privilege\n" + local},
		{"E9 NFS", "data-dir", func(f *fakeHost) { f.statfs(FileSystem{Type: 0x6969}) },
			"fail: data dir /ROOT/data is on NFS, which does not support subordinate ids: images cannot be unpacked\n" + local},
		{"E9 CIFS", "data-dir", func(f *fakeHost) { f.statfs(FileSystem{Type: 0xff534d42}) },
			"fail: data dir /ROOT/data is on CIFS, which does not support subordinate ids: images cannot be unpacked\n" + local},
		{"E9 FUSE", "data-dir", func(f *fakeHost) { f.statfs(FileSystem{Type: 0x65735546}) },
			"warn: data dir /ROOT/data is on a file system (FUSE or 9p) that often rejects files owned by subordinate ids\n" + local},
		{"E11 read-only", "data-dir", func(f *fakeHost) { f.statfs(FileSystem{Flags: unix.ST_RDONLY}) },
			"fail: data dir /ROOT/data is on a read-only mount\n" + local},
		{"a file in the way", "data-dir", func(f *fakeHost) { f.in.Data = layout.NewData(f.path("etc/passwd/x/y")) },
			"fail: data dir /ROOT/etc/passwd/x/y: /ROOT/etc/passwd is not a directory\n" + local},
		{"accessible to others", "data-dir", func(f *fakeHost) {
			f.dir("data", 0o755)
			f.in.UID++ // the start cannot change the mode of a directory of another account
		}, fmt.Sprintf("warn: data dir /ROOT/data has mode 0755 and belongs to uid %d: other accounts can see the names of pods and namespaces\n"+
			"  sudo chown %d /ROOT/data\n  sudo chmod 0700 /ROOT/data\n", os.Getuid(), goodHost(t).in.UID+1)},
		{"N20 the same ids", "data-ids", func(f *fakeHost) { f.data(1<<17, 1<<16) }, "pass: the ids of the data match those of the account\n"},
		{"N20 other ids", "data-ids", func(f *fakeHost) { f.data(1<<18, 1<<16) },
			"fail: data dir /ROOT/data was created with other ids: the subordinate uids were 262144-327679 and are now 131072-196607\n" +
				"  # restore the former ids, because the data's files belong to them\n  # row of /etc/subuid: dev:262144:65536\n" +
				"  sudo usermod --del-subuids 131072-196607 dev\n  sudo usermod --add-subuids 262144-327679 dev\n" +
				"  # or delete the data:\n  delete-data default\n"},
		{"N20 no ids any more", "subids", func(f *fakeHost) {
			f.data(1<<18, 1<<16)
			f.write("etc/subuid", "")
			f.write("etc/subgid", "")
		}, "fail: dev (uid UID) has no subordinate ids: no row in /etc/subuid and /etc/subgid\n"},
		{"a broken record", "data-ids", func(f *fakeHost) {
			f.write("data/rootlessnode.json", "{")
			assert.NilError(f.t, os.Lchown(f.path("data/rootlessnode.json"), f.in.UID, -1))
		}, "fail: read the record of data dir /ROOT/data: /ROOT/data/rootlessnode.json: unexpected end of JSON input\n" +
			"  rm /ROOT/data/rootlessnode.json    # the next start writes it again, if the data is valid\n"},
		{"not there yet", "data-dir", func(f *fakeHost) { f.in.Data = layout.NewData(f.path("data/a/b")) },
			"pass: data dir /ROOT/data/a/b\n"},
		{"full disk", "disk-space", func(f *fakeHost) { f.statfs(FileSystem{Available: 205 << 20, Total: 1 << 30}) },
			"fail: 205 MiB free for data dir /ROOT/data, but the first start needs 400\n" +
				"  # free space on that file system, or move dataDir to another:\n  df -h /ROOT/data\n"},
		{"nearly full disk", "disk-space", func(f *fakeHost) { f.statfs(FileSystem{Available: 1000 << 20, Total: 2 << 30}) },
			"warn: 1000 MiB free for data dir /ROOT/data: few images will fit\n" +
				"  # free space on that file system, or move dataDir to another:\n  df -h /ROOT/data\n"},
		{"less than the kubelet wants", "disk-space", func(f *fakeHost) { f.statfs(FileSystem{Available: 9 << 30, Total: 1 << 40}) },
			"warn: less than 1% free for data dir /ROOT/data: the kubelet will evict pods (kubelet.evictionHard nodefs.available)\n" +
				"  # free space on that file system, or move dataDir to another:\n  df -h /ROOT/data\n"},
		{"no inodes", "disk-space", func(f *fakeHost) {
			f.statfs(FileSystem{Available: 9 << 30, Total: 10 << 30, Inodes: 9999, InodesFree: 10})
		},
			"fail: 10 inodes free for data dir /ROOT/data, but a node needs 5000\n" +
				"  # free space on that file system, or move dataDir to another:\n  df -i /ROOT/data\n"},
		{"E10 socket path", "socket-paths", func(f *fakeHost) { f.in.Runtime = layout.NewRuntime("/run/"+strings.Repeat("x", 60), "default") },
			"fail: socket path too long: /run/" + strings.Repeat("x", 60) + "/rootlessnode/default/rk/gvisortapvsock/tap.sock has 113 characters, the kernel allows 107\n" +
				"  # use a --name that is shorter by 6, or a shorter XDG_RUNTIME_DIR such as /run/user/UID\n"},
		{"F5 open files", "open-files", func(f *fakeHost) {
			f.write("proc/self/limits", "Max open files            1024                 4096                 files\n")
		}, "warn: hard limit of open files is 4096: each forwarded port uses one, and components need 65536\n" +
			"  grep -qsxF 'dev - nofile 65536' /etc/security/limits.d/rootlessnode.conf || " +
			"echo 'dev - nofile 65536' | sudo tee -a /etc/security/limits.d/rootlessnode.conf >/dev/null\n" +
			"  # then log in again; under systemd, set LimitNOFILE= in the unit or DefaultLimitNOFILE= in user.conf instead\n"},
		{"F6 inotify", "inotify", func(f *fakeHost) { f.write("proc/sys/fs/inotify/max_user_instances", "128\n") },
			"warn: fs.inotify.max_user_instances is 128: when all are used, programs fail with \"too many open files\"; 512 is recommended\n" +
				"  sudo sysctl -w fs.inotify.max_user_instances=512\n  grep -qsxF fs.inotify.max_user_instances=512 /etc/sysctl.d/99-rootlessnode.conf || echo fs.inotify.max_user_instances=512 | sudo tee -a /etc/sysctl.d/99-rootlessnode.conf >/dev/null\n" + setup},
		{"G8 privileged port", "ports", func(f *fakeHost) {
			f.set("api.port", "443")
			f.in.Probes.Listen = func(string, string) error { return &os.SyscallError{Syscall: "bind", Err: unix.EACCES} }
		}, "fail: API server (api.port) needs 127.0.0.1:443/tcp, but ordinary users can bind only ports from 1024 (net.ipv4.ip_unprivileged_port_start)\n" +
			"  # let ordinary users bind the port:\n  sudo sysctl -w net.ipv4.ip_unprivileged_port_start=443\n  grep -qsxF net.ipv4.ip_unprivileged_port_start=443 /etc/sysctl.d/99-rootlessnode.conf || echo net.ipv4.ip_unprivileged_port_start=443 | sudo tee -a /etc/sysctl.d/99-rootlessnode.conf >/dev/null\n" +
			"  # or let only this program bind it (repeat after each update): sudo setcap cap_net_bind_service=ep /usr/local/bin/rootlessnode\n" +
			"  # or use port 1024 or higher\n"},
		{"worker", "ports", func(f *fakeHost) {
			f.set("join.server", "https://192.0.2.1")
			f.set("controlPlane.embedded", "false")
			f.set("nodeIP", "192.0.2.9")
		}, "pass: free: 192.0.2.9:10250/tcp (inside.kubeletPort), 192.0.2.9:8472/udp (flannel.vxlanPort)\n"},
		{"worker whose pod network is not flannel", "ports", func(f *fakeHost) {
			f.set("join.server", "https://192.0.2.1")
			f.set("controlPlane.embedded", "false")
			f.set("nodeIP", "192.0.2.9")
			f.set("cni", "none")
			f.set("inside.kubeletPort", "10350")
			f.in.Probes.Listen = func(string, string) error { return unix.EADDRNOTAVAIL }
		}, "fail: kubelet (inside.kubeletPort) needs 192.0.2.9:10350/tcp, but this host does not have this address\n" +
			"  # the addresses of this host:\n  ip -brief address\n"},
		{"worker with an unreachable address", "ports", func(f *fakeHost) {
			f.set("join.server", "https://127.0.0.1:6443")
			f.set("controlPlane.embedded", "false")
		}, "fail: other nodes need an address to reach this node: find this host's address on the route to 127.0.0.1:6443: " +
			"it is 127.0.0.1, which other hosts cannot reach\n  start nodeIP=ADDRESS    # one of:\n  ip -brief address\n"},
		{"no such address", "ports", func(f *fakeHost) {
			f.in.Probes.Listen = func(string, string) error { return unix.EADDRNOTAVAIL }
		}, "fail: API server (api.port) needs 127.0.0.1:6443/tcp, but this host does not have this address\n" +
			"  # the addresses of this host:\n  ip -brief address\n"},
		{"its own ports", "ports", func(f *fakeHost) {
			f.in.Running = true
			f.in.Probes.Listen = func(string, string) error { return unix.EADDRINUSE }
		}, "pass: not checked: the node is running and uses its ports\n"},
		{"static forwards", "ports", func(f *fakeHost) {
			f.set("ports.static", "80:8080,[::1]:53:53/udp")
			f.set("ports.bindAddresses", "127.0.0.1,::1")
		},
			"pass: free: 127.0.0.1:6443/tcp (api.port), 127.0.0.1:80/tcp (ports.static[0]), [::1]:80/tcp (ports.static[0]), [::1]:53/udp (ports.static[1])\n"},
		{"no forwarding", "ports", func(f *fakeHost) { f.set("ports.driver", "none") }, "pass: the node needs no ports of the host\n"},
		{"host is in the pods' network", "routes", func(f *fakeHost) { f.route("cni0", "00012A0A", "00FFFFFF") },
			"fail: cluster.podCIDR 10.42.0.0/16 overlaps the host's route to 10.42.1.0/24 (cni0): addresses in both cannot be reached from the node\n" +
				"  # choose a range that overlaps no route of the host: --set cluster.podCIDR=10.142.0.0/16\n"},
		{"a wider network", "routes", func(f *fakeHost) { f.route("tun0", "0000000A", "000000FF") },
			"warn: cluster.podCIDR 10.42.0.0/16 overlaps the host's route to 10.0.0.0/8 (tun0): addresses in both cannot be reached from the node\n" +
				"  # if the node must reach these addresses: --set cluster.podCIDR=10.142.0.0/16\n" +
				"warn: cluster.serviceCIDR 10.43.0.0/16 overlaps the host's route to 10.0.0.0/8 (tun0): addresses in both cannot be reached from the node\n" +
				"  # if the node must reach these addresses: --set cluster.serviceCIDR=10.143.0.0/16\n"},
		{"H1 a virtual machine", "routes", func(f *fakeHost) { f.route("eth1", "0002000A", "00FFFFFF") },
			"pass: the node uses 10.241.2.0/24 instead of the default of network.cidr, 10.0.2.0/24, which overlaps the host's route to 10.0.2.0/24 (eth1)\n"},
		{"H1 a VPN", "routes", func(f *fakeHost) {
			f.route("tun0", "0000000A", "000000FF")
			f.set("cluster.podCIDR", "172.16.0.0/16")
			f.set("cluster.serviceCIDR", "172.17.0.0/16")
		},
			"pass: the node uses 172.31.241.0/24 instead of the default of network.cidr, 10.0.2.0/24, which overlaps the host's route to 10.0.0.0/8 (tun0)\n"},
		{"H1 a configured range", "routes", func(f *fakeHost) { f.route("eth1", "0003000A", "00FFFFFF"); f.set("network.cidr", "10.0.3.0/24") },
			"fail: network.cidr 10.0.3.0/24 overlaps the host's route to 10.0.3.0/24 (eth1): addresses in both cannot be reached from the node\n" +
				"  # choose a range that overlaps no route of the host: --set network.cidr=10.241.2.0/24\n"},
		{"H1 a name server", "routes", func(f *fakeHost) {
			f.write("etc/resolv.conf", "nameserver 10.0.3.53\nnameserver 127.0.0.53\nnameserver fe80::1%eth0\n")
			f.set("network.cidr", "10.0.3.0/24")
		}, "fail: network.cidr 10.0.3.0/24 overlaps the host's route to 10.0.3.53/32 (name server): addresses in both cannot be reached from the node\n" +
			"  # choose a range that overlaps no route of the host: --set network.cidr=10.241.2.0/24\n"},
		{"H1 a name server in the default range", "routes", func(f *fakeHost) { f.write("etc/resolv.conf", "nameserver 10.0.2.3\n") },
			"pass: the node uses 10.241.2.0/24 instead of the default of network.cidr, 10.0.2.0/24, which overlaps the host's route to 10.0.2.3/32 (name server)\n"},
		{"host root shared", "mounts", func(*fakeHost) {}, "pass: " + allMounts + "\n"},
		{"E5 host root private", "mounts", func(f *fakeHost) {
			f.write("proc/self/mountinfo", "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n22 21 0:5 / /home rw - ext4 /dev/x rw\n")
		}, "warn: the host's root mount is private: " + innerMounts + "\n  # before you start the node:\n  sudo mount --make-rshared /\n"},
		{"a container's root", "mounts", func(f *fakeHost) {
			f.write("proc/self/mountinfo", "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n")
			f.write(".dockerenv", "")
			f.write("proc/self/status", "CapBnd:\t00000000a80425fb\n")
		}, "pass: the container's root mount is private: " + innerMounts + "\n"},
		{"a machine made from a container's image", "mounts", func(f *fakeHost) {
			f.write("proc/self/mountinfo", "21 1 8:1 / / rw - ext4 /dev/sda1 rw\n")
			f.write(".dockerenv", "")
			f.write("proc/self/status", "CapBnd:\t000001ffffffffff\n")
		}, "warn: the host's root mount is private: " + innerMounts + "\n  # before you start the node:\n  sudo mount --make-rshared /\n"},
		{"a private disk", "mounts", func(f *fakeHost) {
			f.write("proc/self/mountinfo", "21 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n22 21 0:5 / /my\\040disk rw master:2 - ext4 /dev/x rw\n"+
				"23 21 0:6 / /proc rw - proc proc rw\n")
		}, "warn: later mounts of the host below /my disk are not visible in the node, because these mounts are private\n" +
			"  # before you start the node:\n  sudo mount --make-rshared '/my disk'\n"},
		{"propagation not wanted", "mounts", func(f *fakeHost) { f.set("mounts.propagation", "rprivate") },
			"pass: mounts.propagation is rprivate: " + innerMounts + "\n"},
		{"the proposed range is in use too", "routes", func(f *fakeHost) {
			f.route("a", "00002A0A", "0000FFFF")
			f.route("b", "00008E0A", "0000FFFF")
		}, "fail: cluster.podCIDR 10.42.0.0/16 overlaps the host's route to 10.42.0.0/16 (a): addresses in both cannot be reached from the node\n" +
			"  # choose a range that overlaps no route of the host: --set cluster.podCIDR=10.143.0.0/16\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := goodHost(t)
			tc.set(f)
			got := f.run(tc.check)
			assert.Equal(t, got, tc.want)
			assertShell(t, hintOf(got))
		})
	}
}

func hintOf(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if hint, ok := strings.CutPrefix(line, "  "); ok {
			b.WriteString(hint)
		}
	}
	return b.String()
}

func (f *fakeHost) route(device, destination, mask string) {
	b, err := os.ReadFile(f.path("proc/net/route"))
	assert.NilError(f.t, err)
	f.write("proc/net/route", string(b)+fmt.Sprintf("%s\t%s\t00000000\t0001\t0\t0\t0\t%s\t0\t0\t0\n", device, destination, mask))
}

func TestPortInUseNamesItsHolder(t *testing.T) {
	t.Parallel()
	f := goodHost(t)
	f.in.Probes.Listen = func(string, string) error { return unix.EADDRINUSE }
	f.write("proc/net/tcp", "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"+
		"   0: 0100007F:192B 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1234        0 4242 1\n")
	assert.Assert(t, strings.HasPrefix(f.run("ports"),
		"fail: API server (api.port) needs 127.0.0.1:6443/tcp, which is in use, by a process of uid 1234\n"), f.run("ports"))

	f.write("proc/77/comm", "kube-apiserver\n")
	f.dir("proc/77/fd", 0o755)
	assert.NilError(t, os.Symlink("socket:[4242]", f.path("proc/77/fd/9")))
	assert.Assert(t, strings.HasPrefix(f.run("ports"),
		"fail: API server (api.port) needs 127.0.0.1:6443/tcp, which is in use, by kube-apiserver (pid 77)\n"), f.run("ports"))
}

func TestTunWithoutAccess(t *testing.T) {
	t.Parallel()
	testutil.Require(t, testutil.OrdinaryUser) // root has access whatever the mode
	f := goodHost(t)
	assert.NilError(t, os.Chmod(f.path("dev/net/tun"), 0o600))
	assert.NilError(t, os.Chmod(f.path("dev/net/tun"), 0))
	assert.Equal(t, strings.Split(f.run("tun"), "\n")[0], "fail: no access to /dev/net/tun: mode ----------, usually rw-rw-rw-")
}

func TestDataDirNotWritable(t *testing.T) {
	t.Parallel()
	testutil.Require(t, testutil.OrdinaryUser) // root has access whatever the mode
	f := goodHost(t)
	assert.NilError(t, os.Chmod(f.path("data"), 0o500))
	t.Cleanup(func() { _ = os.Chmod(f.path("data"), 0o700) })
	assert.Equal(t, f.run("data-dir"), "fail: data dir /ROOT/data: /ROOT/data is not writable by uid UID\n"+
		"  # make the account its owner, or choose another directory with dataDir:\n  sudo install -d -m 0700 -o UID /ROOT/data\n")
}

func TestResolveRuntimeDir(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name string
		// set prepares the host and returns the value of the variable.
		set                func(*fakeHost) string
		dir, warning, fail string
	}{
		{"set", func(f *fakeHost) string { return f.own("elsewhere", 0o700) }, "/ROOT/elsewhere", "", ""},
		{"B1 unset", func(*fakeHost) string { return "" }, "/ROOT/run/user/UID", "XDG_RUNTIME_DIR is not set; using /ROOT/run/user/UID", ""},
		{"B1 unset and none", func(f *fakeHost) string { f.remove("run/user"); return "" }, "", "",
			"RN-RUNTIME-DIR: XDG_RUNTIME_DIR is not set, and /ROOT/run/user/UID does not exist"},
		{"B1 mode", func(f *fakeHost) string { f.dir(fmt.Sprintf("run/user/%d", f.in.UID), 0o755); return "" }, "", "",
			"RN-RUNTIME-DIR: XDG_RUNTIME_DIR is not set, and /ROOT/run/user/UID has mode 0755, not 0700"},
		{"B2 relative", func(*fakeHost) string { return "run" }, "/ROOT/run/user/UID",
			"XDG_RUNTIME_DIR is run, which is not an absolute path; using /ROOT/run/user/UID", ""},
		{"B2 a file", func(f *fakeHost) string { return f.path("etc/passwd") }, "/ROOT/run/user/UID",
			"XDG_RUNTIME_DIR is /ROOT/etc/passwd, which is not a directory; using /ROOT/run/user/UID", ""},
		{"B2 gone", func(f *fakeHost) string { return f.path("gone") }, "/ROOT/run/user/UID",
			"XDG_RUNTIME_DIR is /ROOT/gone, which does not exist; using /ROOT/run/user/UID", ""},
		{"B3 foreign", func(*fakeHost) string { return "/" }, "/ROOT/run/user/UID",
			"XDG_RUNTIME_DIR is /, which belongs to uid 0, not to this account (uid UID); using /ROOT/run/user/UID", ""},
		{"B2 foreign and none", func(f *fakeHost) string { f.remove("run/user"); return "/" }, "", "",
			"RN-RUNTIME-DIR: XDG_RUNTIME_DIR is /, which belongs to uid 0, not to this account (uid UID), and /ROOT/run/user/UID does not exist"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := goodHost(t)
			value := tc.set(f)
			dir, warning, err := ResolveRuntimeDir([]string{"XDG_RUNTIME_DIR=" + value}, f.in.UID, f.root)
			assert.Equal(t, f.anonymous(dir), tc.dir)
			assert.Equal(t, f.anonymous(warning.Message), tc.warning)
			if tc.fail == "" {
				assert.NilError(t, err)
				return
			}
			assert.Equal(t, f.anonymous(err.Error()), tc.fail)
			assert.ErrorIs(t, err, errdefs.ErrPreflight)
			assertShell(t, errdefs.ReportOf(err).Hints[0])
		})
	}
}

func TestResolveRuntimeDirForRoot(t *testing.T) {
	t.Parallel()
	_, _, err := ResolveRuntimeDir(nil, 0, t.TempDir())
	assert.ErrorContains(t, err, "RN-ROOT: a node must be run by an ordinary user") // and, in another user namespace, that it is root there
}

func (f *fakeHost) own(path string, mode os.FileMode) string {
	dir := f.dir(path, mode)
	assert.NilError(f.t, os.Lchown(dir, f.in.UID, -1))
	return dir
}

// TestRealProbes calls each probe on the real host.
func TestRealProbes(t *testing.T) {
	t.Parallel()
	p := Probes{}.orReal()
	fs, err := p.Statfs(t.TempDir())
	assert.NilError(t, err)
	assert.Assert(t, fs.Total > 0 && fs.Available <= fs.Total)
	_, err = p.Statfs("/nonexistent")
	assert.ErrorIs(t, err, os.ErrNotExist)

	assert.NilError(t, p.Listen("tcp4", "127.0.0.1:0"))
	assert.NilError(t, p.Listen("udp4", "127.0.0.1:0"))

	plain := filepath.Join(t.TempDir(), "newuidmap")
	assert.NilError(t, os.WriteFile(plain, nil, 0o755))
	may, err := p.MayMapIDs(plain, false)
	assert.NilError(t, err)
	assert.Assert(t, !may)
	assert.NilError(t, p.Inotify(1))
	assert.ErrorIs(t, p.Inotify(1<<20), unix.EMFILE)
	assert.Assert(t, time.Since(p.Now()) < time.Hour)
	if os.Getuid() == 0 {
		assert.NilError(t, os.Chmod(plain, 0o755|os.ModeSetuid))
		may, err = p.MayMapIDs(plain, false)
		assert.NilError(t, err)
		assert.Assert(t, may)
	}
}

func TestFileCapability(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "newuidmap")
	assert.NilError(t, os.WriteFile(path, nil, 0o755))
	// struct vfs_cap_data, revision 2: magic and effective bit, permitted and inheritable of both words.
	attr := make([]byte, 20)
	attr[0], attr[3], attr[4] = 1, 2, 1<<unix.CAP_SETUID
	if err := unix.Setxattr(path, "security.capability", attr, 0); err != nil {
		t.Skipf("needs CAP_SETFCAP and a file system with attributes: %v", err)
	}
	may, err := mayMapIDs(path, false)
	assert.NilError(t, err)
	assert.Assert(t, may)
	may, err = mayMapIDs(path, true)
	assert.NilError(t, err)
	assert.Assert(t, !may)
}

func FuzzParsers(f *testing.F) {
	f.Add([]byte("eth0\t0001A8C0\t0\t0001\t0\t0\t0\t00FFFFFF\n"))
	f.Add([]byte(`{"schema":1,"components":[{"name":"a","path":"b","sha256":"c"}]}`))
	f.Fuzz(func(_ *testing.T, b []byte) {
		parseRoutes(b)
		parseSockets(b)
		_, _ = parseManifest(b)
		parseRelease(string(b))
	})
}

func TestResources(t *testing.T) {
	t.Parallel()
	lacking := func(f *fakeHost, missing ...string) {
		f.in.Probes.Delegation = func() (cgroupv2.Host, cgroupv2.Delegation, error) {
			return cgroupv2.Host{Mount: "/sys/fs/cgroup"}, cgroupv2.Delegation{
				Root: "/sys/fs/cgroup/x", Source: cgroupv2.SourceCurrent, Missing: missing, HeldByV1: missing, LostAt: "/sys/fs/cgroup",
			}, nil
		}
	}
	for name, tc := range map[string]struct {
		change func(f *fakeHost)
		want   string
	}{
		"no caps": {func(*fakeHost) {}, "pass: no cap: the node may use the machine's 4 CPUs and 8192 MiB\n"},
		"capped": {func(f *fakeHost) {
			f.set("resources.cpu", "1500m")
			f.set("resources.pids", "4096")
		}, "pass: the node is capped: cpu 1500m, pids 4096\n"},
		"without the controllers": {func(f *fakeHost) {
			f.set("resources.memory", "4Gi")
			f.set("resources.cpuManager", "static")
			lacking(f, "cpuset", "memory")
		}, "warn: resources.memory, resources.cpuManager: not enforced, because the cgroup lacks cpuset, memory; the scheduler still honors the caps\n" +
			"  # cgroup v1 holds cpuset, memory; boot with the kernel argument systemd.unified_cgroup_hierarchy=1 to free them.\n"},
		"missing, but not needed": {func(f *fakeHost) { lacking(f, "cpu") },
			"pass: no cap: the node may use the machine's 4 CPUs and 8192 MiB\n"},
		"more than there is": {func(f *fakeHost) {
			f.set("resources.cpu", "5")
			f.set("resources.memory", "9Gi")
			f.set("resources.pids", "40000")
		}, "warn: resources.cpu: 5 is more than the machine has (4 CPUs)\nwarn: resources.memory: 9Gi is more than the machine has (8192 MiB)\n" +
			"warn: resources.pids: 40000 is more than the machine has (32768 tasks)\n"},
		"all for the components": {func(f *fakeHost) { f.set("resources.systemReserved.memory", "8Gi") },
			"warn: resources.systemReserved.memory leaves nothing for pods: the machine has 8192 MiB\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := goodHost(t)
			tc.change(f)
			assert.Equal(t, f.run("resources"), tc.want)
		})
	}
}

func TestProc(t *testing.T) {
	t.Parallel()
	const root, proc = "20 1 0:30 / / rw - overlay overlay rw\n", "21 20 0:5 / /proc rw,nosuid - proc proc rw\n"
	const masked = "30 21 0:5 /sys /proc/sys ro - proc proc rw\n31 21 0:6 /null /proc/kcore rw - tmpfs tmpfs rw\n"
	const where = "fail: parts of /proc are covered or read-only, so the kernel does not let the node mount its own /proc: "
	for name, tc := range map[string]struct {
		mounts string
		files  []string
		want   string
	}{
		"a host": {root + proc + "29 21 0:40 / /proc/sys/fs/binfmt_misc rw - autofs systemd-1 rw\n31 1 0:41 / /proc2 rw - tmpfs x rw\n", nil,
			"pass: /proc is fully visible: the node can mount its own /proc\n"},
		"docker": {root + proc + masked, []string{".dockerenv"}, where + "/proc/sys, /proc/kcore\n  # start the container with other options:\n" +
			"  # Docker: docker run --security-opt systempaths=unconfined\n"},
		"podman": {root + proc + masked, []string{"run/.containerenv"}, where + "/proc/sys, /proc/kcore\n  # start the container with other options:\n" +
			"  # Podman: podman run --security-opt unmask=ALL\n"},
		"kubernetes": {root + proc + masked, []string{"run/secrets/kubernetes.io/serviceaccount/token"}, where + "/proc/sys, /proc/kcore\n" +
			"  # start the container with other options:\n" +
			"  # Kubernetes: securityContext.procMount: Unmasked of the container, which requires hostUsers: false of the pod\n"},
		"read-only": {root + "21 20 0:5 / /proc ro,nosuid - proc proc rw\n", []string{".dockerenv"}, where + "/proc\n" +
			"  # start the container with other options:\n  # Docker: docker run --security-opt systempaths=unconfined\n"},
		"masked, with a second, complete one (LXC with nesting)": {root + proc + masked + "40 20 0:5 / /dev/.lxc/proc rw - proc proc rw\n", nil,
			"pass: /dev/.lxc/proc is fully visible: the node can mount its own /proc\n"},
		"no /proc mount": {root, nil, "pass: no /proc mount is listed in mountinfo\n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := goodHost(t)
			f.write("proc/self/mountinfo", tc.mounts)
			for _, file := range tc.files {
				f.write(file, "")
			}
			assert.Equal(t, f.run("proc"), tc.want)
		})
	}
}

func TestReadOnlyCgroupNamesTheEnginesSetting(t *testing.T) {
	t.Parallel()
	f := goodHost(t)
	f.write(".dockerenv", "")
	f.in.Probes.Delegation = func() (cgroupv2.Host, cgroupv2.Delegation, error) {
		return cgroupv2.Host{}, cgroupv2.Delegation{}, &cgroupv2.NotDelegatedError{Self: "/sys/fs/cgroup", ReadOnly: true}
	}
	assert.Equal(t, f.run("cgroup"), "fail: no cgroup is delegated to this account: own cgroup /sys/fs/cgroup is in a tree mounted read-only\n"+
		"  # start the container with other options:\n"+
		"  # Docker 28 or later: docker run --cgroupns=private --security-opt writable-cgroups=true; "+
		"before: docker run --cgroupns=host --cgroup-parent=/NAME --volume /sys/fs/cgroup/NAME:/sys/fs/cgroup\n")
}
