package preflight

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
	"github.com/rootlessnode/rootlessnode/internal/trial"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// Each case plants a fault that the trial finds.
func TestTriedChecks(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, check string
		step        trial.Step
		err         error
		set         func(*fakeHost)
		want        string // the first line
	}{
		{"H6 not a TUN device", "tun", trial.StepTun, unix.ENOTTY, nil, "fail: /dev/net/tun is not a TUN device: inappropriate ioctl for device"},
		{"TUN is forbidden", "tun", trial.StepTun, unix.EPERM, nil, "fail: creating a network device with /dev/net/tun is not permitted"},
		{"no bridge", "network-devices", trial.StepBridge, errors.New("Error: Unknown device type."), nil,
			"fail: the node cannot create a bridge: Error: Unknown device type."},
		{"no veth", "network-devices", trial.StepVeth, errors.New("no"), nil, "fail: the node cannot create a veth device: no"},
		{"no vxlan", "network-devices", trial.StepVXLAN, errors.New("no"), nil, "fail: the node cannot create a vxlan device: no"},
		{"no vxlan and not needed", "network-devices", trial.StepVXLAN, errors.New("no"),
			func(f *fakeHost) { f.set("flannel.backend", "host-gw") }, "pass: devices and packet filter rules of the pod network can be created"},
		{"F7 no nat chain", "network-devices", trial.StepNAT, errors.New("no"), nil, "fail: the node cannot create rules with nftables: no"},
		{"F7 no nat chain, iptables", "network-devices", trial.StepNAT, errors.New("no"),
			func(f *fakeHost) { f.set("kubeProxy.mode", "iptables") }, "fail: the node cannot create rules with iptables: no"},
		{"no program with the driver", "network-program", "", nil, func(f *fakeHost) {
			f.in.DriverFault = errdefs.Preflight("find the program with the driver").Hint("make build")
		}, "fail: find the program with the driver"},
		{"mount does not work", "programs", trial.StepMount, errors.New("broken"), nil, "fail: mount and umount do not work: broken"},
		{"slirp4netns does not work", "network-program", trial.StepUplink, errors.New("broken"), nil, "fail: slirp4netns cannot connect a network namespace: broken"},
		{"H6 nsenter does not work", "programs", trial.StepEnter, errors.New("nsenter: broken"), nil,
			"fail: nsenter and ip cannot create a device in another network namespace: nsenter: broken"},
		{"the seccomp filter of Podman", "namespaces", trial.StepHostName, unix.EPERM, func(f *fakeHost) { f.write("run/.containerenv", "") },
			"fail: the host name of a new namespace cannot be set, but every pod has its own, because of a seccomp filter: operation not permitted"},
		{"/proc", "proc", trial.StepProc, unix.EPERM, nil, "fail: the kernel does not let the node mount its own /proc: operation not permitted"},
		{"cgroup2", "cgroup", trial.StepCgroup, unix.EPERM, nil, "fail: the node cannot mount its cgroup over /sys/fs/cgroup: operation not permitted"},
		{"propagation", "mounts", trial.StepPropagation, unix.EINVAL, nil, "fail: the node cannot change the propagation of its mounts: invalid argument"},
		{"no /tmp", "tmp", trial.StepTmp, unix.ENOENT, nil, "fail: the start cannot mount a tmpfs over /tmp: no such file or directory"},
		{"a namespace of one kind", "namespaces", trial.StepStart, unix.ENOSPC, nil,
			"fail: the account has used up its namespaces of one kind (user.max_*_namespaces): no space left on device"},
		{"E9 chown", "data-files", trial.StepOwner, unix.EPERM, nil,
			"fail: data dir /ROOT/data is on a file system where files cannot give files to subordinate ids, as images need (operation not permitted)"},
		{"E7 noexec", "data-files", trial.StepExec, unix.EACCES, nil,
			"fail: data dir /ROOT/data is on a file system where files cannot execute programs, such as those of images (permission denied)"},
		{"overlayfs", "overlay", trial.StepOverlay, unix.EINVAL, nil,
			"warn: overlayfs does not work in data dir /ROOT/data, so images need more time and space: invalid argument"},
		{"overlayfs is required", "overlay", trial.StepOverlay, unix.EINVAL, func(f *fakeHost) { f.set("containerd.snapshotter", "overlayfs") },
			"fail: overlayfs does not work in data dir /ROOT/data: invalid argument"},
		{"overlayfs is not used", "overlay", trial.StepOverlay, unix.EINVAL, func(f *fakeHost) { f.set("containerd.snapshotter", "native") },
			"pass: overlayfs is not needed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := goodHost(t)
			if tc.err != nil {
				f.fault(tc.step, tc.err)
			}
			if tc.set != nil {
				tc.set(f)
			}
			got := f.run(tc.check)
			first, _, _ := strings.Cut(got, "\n")
			assert.Equal(t, first, tc.want)
			assertShell(t, hintOf(got))
		})
	}
}

func TestTrialThatDidNotFinish(t *testing.T) {
	t.Parallel()
	f := goodHost(t)
	f.in.Probes.Trial = func(context.Context, trial.Request) (trial.Result, error) {
		return trial.Result{}, errors.New("killed")
	}
	assert.Equal(t, f.run("namespaces"), "warn: not tried: killed\n")
}

// The trial gets the programs and the id maps that the start would use, and a directory on the file system of the data dir.
func TestTrialRequest(t *testing.T) {
	t.Parallel()
	f := goodHost(t)
	f.in.Data.Dir = f.path("data/a/b") // does not exist
	var request trial.Request
	f.in.Probes.Trial = func(_ context.Context, r trial.Request) (trial.Result, error) {
		request = r
		_, err := os.Stat(r.Work.Dir)
		assert.Check(t, err)
		return nil, nil
	}
	f.run("tmp")
	w := request.Work
	assert.Equal(t, filepath.Dir(w.Dir), f.path("data"))
	_, err := os.Stat(w.Dir)
	assert.ErrorIs(t, err, os.ErrNotExist)
	assert.Equal(t, w.Tun, f.path("dev/net/tun"))
	assert.DeepEqual(t, []string{w.IP, w.NFT, w.IPTables}, []string{f.path("bin/ip"), f.path("bin/nft"), f.path("bin/iptables")})
	assert.Equal(t, w.LastID, 65536)
	assert.DeepEqual(t, request.GIDs, trial.Map{Program: f.path("bin/newgidmap"), Args: []string{"0", "4000", "1", "1", "165536", "65536"}})

	f = goodHost(t)
	f.set("network.driver", "none")
	f.set("kubeProxy.mode", "iptables")
	f.write("etc/subgid", "dev:165536:65536 \n")
	f.in.Probes.Trial = func(_ context.Context, r trial.Request) (trial.Result, error) { request = r; return nil, nil }
	f.run("tmp")
	assert.DeepEqual(t, []string{request.Work.Tun, request.Work.NFT, request.UIDs.Program}, []string{"", "", ""})
}

// Each case changes one property of the good host. The letter is the section of the case in the lists of cases that users reported.
func TestLimitsAndFiles(t *testing.T) {
	t.Parallel()
	limit := func(line string) func(*fakeHost) {
		return func(f *fakeHost) { f.write("proc/self/limits", "Max open files  1024  65536  files\n"+line+"\n") }
	}
	env := func(kv string) func(*fakeHost) { return func(f *fakeHost) { f.in.Env = append(f.in.Env, kv) } }
	for _, tc := range []struct {
		name, check string
		set         func(*fakeHost)
		want        string // the first line
	}{
		{"N2 few network namespaces", "namespaces", func(f *fakeHost) { f.write("proc/sys/user/max_net_namespaces", "100\n") },
			"warn: user.max_net_namespaces is 100: 110 pods (kubelet.maxPods) need up to 111"},
		{"N2 no pid namespace", "namespaces", func(f *fakeHost) { f.write("proc/sys/user/max_pid_namespaces", "0\n") },
			"fail: user.max_pid_namespaces is 0: no such namespace can be created"},
		{"N2 more pods", "namespaces", func(f *fakeHost) {
			f.write("proc/sys/user/max_mnt_namespaces", "1000\n")
			f.set("kubelet.maxPods", "400")
		}, "warn: user.max_mnt_namespaces is 1000: 400 pods (kubelet.maxPods) need up to 1201"},
		{"N2 enough", "namespaces", func(f *fakeHost) { f.write("proc/sys/user/max_mnt_namespaces", "1000\n") },
			"pass: namespaces of every kind can be created, enough for 110 pods"},
		{"N2 keys with containerd", "kernel-keys", func(f *fakeHost) { f.write("proc/sys/kernel/keys/maxkeys", "200\n") },
			"pass: not needed: containers get no keyring"},
		{"N2 keys with CRI-O", "kernel-keys", func(f *fakeHost) {
			f.set("cri.runtime", "crio")
			f.write("proc/sys/kernel/keys/maxkeys", "200\n")
			f.write("proc/sys/kernel/keys/maxbytes", "20000\n")
			f.write("proc/key-users", "    0:    66 65/65 49/1000000 899/25000000\n"+strings.Replace(" UID: 7 7/7 5/200 100/20000\n", "UID", uidOf(f), 1))
		}, "warn: kernel.keys.maxkeys is 200 and 5 are in use: 110 pods (kubelet.maxPods) need up to 330"},
		{"file size", "limits", limit("Max file size  1000000  1000000  bytes"),
			`fail: the login's hard limit "max file size" is 1000000: images and the database need larger files`},
		{"CPU time", "limits", limit("Max cpu time  3600  3600  seconds"),
			`fail: the login's hard limit "max cpu time" is 3600: the kernel ends each component after that many seconds of CPU time`},
		{"address space", "limits", limit("Max address space  unlimited  4096000000  bytes"),
			`fail: the login's hard limit "max address space" is 4096000000: components cannot map enough memory`},
		{"very few open files", "open-files", func(f *fakeHost) { f.write("proc/self/limits", "Max open files  256  256  files\n") },
			"fail: hard limit of open files is 256, but the components need at least 1024, and 65536 with many ports"},
		{"few processes", "processes", limit("Max processes  100  200  processes"),
			"fail: the login's hard limit allows 200 more processes and threads, but a node needs at least 512"},
		{"some processes", "processes", limit("Max processes  100  2000  processes"),
			"warn: the login's hard limit allows 2000 more processes and threads: few pods will run"},
		{"pids.max of a slice", "processes", func(f *fakeHost) {
			f.cgroup("user.slice/x", "user.slice")
			f.write("cg/user.slice/pids.max", "1000\n")
			f.write("cg/user.slice/pids.current", "900\n")
		}, "fail: /ROOT/cg/user.slice/pids.max allows 100 more processes and threads, but a node needs at least 512"},
		{"no memory", "memory", func(f *fakeHost) { f.write("proc/meminfo", "MemAvailable:  204800 kB\nSwapFree:  0 kB\n") },
			"fail: the machine has 200 MiB of memory available, but a node needs at least 300"},
		{"little memory, and swap", "memory", func(f *fakeHost) { f.write("proc/meminfo", "MemAvailable:  204800 kB\nSwapFree:  512000 kB\n") },
			"warn: the machine has 700 MiB of memory available: few pods will run"},
		{"memory.max of a slice", "memory", func(f *fakeHost) {
			f.cgroup("user.slice/x", "user.slice")
			f.write("cg/user.slice/memory.max", "1073741824\n")
			f.write("cg/user.slice/memory.current", "973741824\n")
		}, "fail: /ROOT/cg/user.slice has 95 MiB of memory available, but a node needs at least 300"},
		{"inotify in use", "inotify", func(f *fakeHost) { f.in.Probes.Inotify = func(int) error { return unix.EMFILE } },
			"fail: a start needs 16 inotify instances, and the account cannot get that many: too many open files"},
		{"a clock before the build", "clock", func(f *fakeHost) { f.in.Probes.Now = func() time.Time { return time.Unix(0, 0) } },
			"warn: the clock may be wrong: it is 1970-01-01 00:00:00 UTC, but this program was built on 2026-12-01 00:00:00 UTC"},
		{"a clock before the cluster", "clock", func(f *fakeHost) { f.authority(2028, 2038) },
			"fail: the clock is wrong: it is 2027-01-02 03:04:05 UTC, but the cluster was created after 2028-01-01 00:00:00 UTC"},
		{"a clock after the cluster", "clock", func(f *fakeHost) { f.authority(2016, 2026) },
			"fail: it is 2027-01-02 03:04:05 UTC, but the cluster's certificate authority is valid only until 2026-01-01 00:00:00 UTC"},
		{"a valid cluster", "clock", func(f *fakeHost) { f.authority(2026, 2036) }, "pass: the clock is plausible: 2027-01-02 03:04:05 UTC"},
		{"N3 proxy", "proxy", env("HTTPS_PROXY=http://u:secret@proxy.example:3128"), "pass: proxies are valid: HTTPS_PROXY"},
		{"N4 proxy at the host's loopback", "proxy", env("HTTPS_PROXY=http://localhost:3128"),
			"warn: the proxy at port 3128 of the host's loopback cannot be reached from the node: images cannot be pulled"},
		{"N4 allowed proxy at the host's loopback", "proxy", func(f *fakeHost) {
			env("HTTPS_PROXY=http://localhost:3128")(f)
			f.in.Config.Network.HostPorts = []int{3128}
		}, "pass: proxies are valid: HTTPS_PROXY"},
		{"proxy without scheme", "proxy", env("http_proxy=proxy:3128"), "pass: proxies are valid: http_proxy"},
		{"malformed proxy", "proxy", env("HTTPS_PROXY=http://u:secret@proxy:31x28"),
			`fail: HTTPS_PROXY is not the URL of a proxy: invalid port ":31x28" after host`},
		{"proxy of another scheme", "proxy", env("http_proxy=ftp://proxy"), `fail: http_proxy is not the URL of a proxy: the scheme "ftp" is not supported`},
		{"G13 no hosts", "hosts", func(f *fakeHost) { f.remove("etc/hosts") },
			"warn: /etc/hosts: no such file or directory: programs on this host may be unable to resolve localhost"},
		{"G13 dangling hosts", "hosts", func(f *fakeHost) {
			f.remove("etc/hosts")
			assert.NilError(f.t, os.Symlink("/nonexistent", f.path("etc/hosts")))
		}, "warn: /etc/hosts: no such file or directory: programs on this host may be unable to resolve localhost"},
		{"G13 empty hosts", "hosts", func(f *fakeHost) { f.write("etc/hosts", "") },
			"warn: /etc/hosts has no line for localhost: programs on this host may be unable to resolve it"},
		{"G13 no localhost", "hosts", func(f *fakeHost) { f.write("etc/hosts", "# 127.0.0.1 localhost\n192.0.2.1 localhost\n127.0.1.1 me\n") },
			"warn: /etc/hosts has no line for localhost: programs on this host may be unable to resolve it"},
		{"G13 IPv6 localhost", "hosts", func(f *fakeHost) { f.write("etc/hosts", "::1 ip6 localhost # x\n") }, "pass: /etc/hosts has localhost"},
		{"no resolv.conf", "resolv-conf", func(f *fakeHost) { f.remove("etc/resolv.conf") },
			"warn: /etc/resolv.conf: no such file or directory: the node cannot resolve names of other hosts, so it cannot pull images"},
		{"only IPv6 name servers", "resolv-conf", func(f *fakeHost) { f.write("etc/resolv.conf", "nameserver 2001:db8::1\n") },
			"warn: /etc/resolv.conf has only name servers with IPv6 addresses (2001:db8::1), which the node cannot query with these settings"},
		{"IPv6 name servers and network.ipv6", "resolv-conf", func(f *fakeHost) {
			f.write("etc/resolv.conf", "nameserver 2001:db8::1\n")
			f.in.Config.Network.IPv6 = true
		}, "pass: name servers: 2001:db8::1"},
		{"no name server", "resolv-conf", func(f *fakeHost) { f.write("etc/resolv.conf", "search x\n#nameserver 192.0.2.1\n") },
			"warn: /etc/resolv.conf has no name server: the node cannot resolve names of other hosts, so it cannot pull images"},
		{"no name server is needed", "resolv-conf", func(f *fakeHost) { f.remove("etc/resolv.conf"); f.set("network.driver", "none") },
			"pass: not needed: the node has no uplink"},
		{"E4 no CA files", "ca-files", func(f *fakeHost) { f.remove("etc/ssl") }, "warn: no certificate authorities in /etc/ssl/certs/ca-certificates.crt, " +
			"/etc/pki/tls/certs/ca-bundle.crt, /etc/ssl/ca-bundle.pem, /etc/pki/tls/cacert.pem, " +
			"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem, /etc/ssl/cert.pem, /etc/ssl/certs, /etc/pki/tls/certs: images cannot be pulled from registries"},
		{"E4 a directory of CA files", "ca-files", func(f *fakeHost) {
			f.remove("etc/ssl")
			f.write("etc/ssl/certs/x.pem", "x\n-----BEGIN CERTIFICATE-----\n")
		}, "pass: certificate authorities: /etc/ssl/certs"},
		{"E4 another file of CAs", "ca-files", env("SSL_CERT_FILE=/nonexistent"), "pass: certificate authorities: /etc/ssl/certs"},
		{"H6 /tmp is missing", "tmp", func(f *fakeHost) { f.remove("tmp") }, "fail: programs cannot create files in /tmp: no such file or directory"},
		{"H6 no nsenter", "programs", func(f *fakeHost) { f.remove("bin/nsenter") }, "fail: not found on PATH: nsenter"},
		{"nsenter is not needed", "programs", func(f *fakeHost) { f.remove("bin/nsenter"); f.set("network.driver", "pasta") },
			"pass: ip, mount, nft, iptables are installed"},
		{"205 MiB free", "disk-space", func(f *fakeHost) { f.statfs(FileSystem{Available: 205 << 20, Total: 1 << 30}) },
			"fail: 205 MiB free for data dir /ROOT/data, but the first start needs 400"},
		{"205 MiB free for existing data", "disk-space", func(f *fakeHost) {
			f.authority(2026, 2036)
			f.statfs(FileSystem{Available: 205 << 20, Total: 1 << 30})
		}, "warn: 205 MiB free for data dir /ROOT/data: few images will fit"},
		{"99 MiB free for existing data", "disk-space", func(f *fakeHost) {
			f.authority(2026, 2036)
			f.statfs(FileSystem{Available: 99 << 20, Total: 1 << 30})
		}, "fail: 99 MiB free for data dir /ROOT/data, but a start needs 100"},
		{"a colon in the path", "data-path", func(f *fakeHost) { f.in.Data.Dir = "/a:b" },
			"fail: the path of data dir /a:b has a colon, but KUBECONFIG is a list of paths separated by colons"},
		{"a newline in the path", "data-path", func(f *fakeHost) { f.in.Data.Dir = "/a\nb" }, `fail: the path of data dir "/a\nb" has control characters`},
		{"an unusual path", "data-path", func(f *fakeHost) { f.in.Data.Dir = `/a '"\%$é,` }, `pass: all programs accept the path of data dir /a '"\%$é,`},
		{"no registries", "runtime", func(f *fakeHost) { f.set("containerd.registryConfigDir", "/certs.d") },
			"fail: containerd.registryConfigDir: /certs.d does not exist or is not readable"},
		{"a file to copy up", "mounts", func(f *fakeHost) { f.set("mounts.copyUp", "[/etc, /etc/hosts]") },
			"fail: mounts.copyUp: /etc/hosts is not a directory"},
		{"A1 a file that cannot be read", "subids", func(f *fakeHost) { f.remove("etc/subuid"); f.dir("etc/subuid", 0o755) },
			"fail: /etc/subuid cannot be read: is a directory"},
		{"B2 a full runtime directory", "runtime-dir", func(f *fakeHost) { f.statfs(FileSystem{Available: 8 << 10}) },
			"fail: 8 KiB free in runtime directory /ROOT/run/user/UID, but a node needs 32"},
		{"A3 CRLF", "subids", func(f *fakeHost) { f.write("etc/subuid", "dev:165536:65536\r\n") },
			"fail: /etc/subuid line 1 (dev:165536:65536) ends with a carriage return (CRLF line ends), which newuidmap does not accept"},
		{"A3 a blank", "subids", func(f *fakeHost) { f.write("etc/subgid", "dev:165536:65536 \n") },
			"fail: /etc/subgid line 1 (dev:165536:65536) has blanks at its beginning or end, which newuidmap does not accept"},
		{"A3 CRLF of another account", "subids", func(f *fakeHost) { f.write("etc/subuid", "other:100000:65536\r\ndev:165536:65536\n") },
			"pass: subordinate ids: uids 165536-231071, gids 165536-231071"},
		{"A11 a name with blanks", "subids", func(f *fakeHost) {
			f.write("etc/passwd", "my user:x:"+uidOf(f)+":4000::/:/bin/sh\n")
			f.write("etc/subuid", "my user:165536:65536\n")
			f.write("etc/subgid", uidOf(f)+":165536:65536\n")
		}, "pass: subordinate ids: uids 165536-231071, gids 165536-231071"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := goodHost(t)
			tc.set(f)
			got := f.run(tc.check)
			first, _, _ := strings.Cut(got, "\n")
			assert.Equal(t, first, tc.want)
			assert.Assert(t, !strings.Contains(got, "secret"), got)
			assertShell(t, hintOf(got))
		})
	}
}

// A row with a count of 0, or beyond the kernel's ids, is named, and a new one is proposed.
func TestUnusableRowIsReplaced(t *testing.T) {
	t.Parallel()
	for row, reason := range map[string]string{
		"dev:165536:0": "has a count of 0", "dev:4294967000:65536": "has ids above 4294967294, the highest id of the kernel",
	} {
		f := goodHost(t)
		f.write("etc/subuid", row+"\n")
		got := f.run("subids")
		assert.Assert(t, strings.Contains(got, "fail: /etc/subuid line 1 ("+row+") "+reason+"\n"), got)
		assert.Assert(t, strings.Contains(got, "sed -i '\\|^[[:space:]]*"+row+"[[:space:]]*$|s|^|# |' /etc/subuid\n"), got)
		assert.Assert(t, strings.Contains(got, "usermod --add-subuids 100000-165535 dev\n"), got)
		assertShell(t, hintOf(got))
	}
}

func uidOf(f *fakeHost) string { return strconv.Itoa(f.in.UID) }

// cgroup sets the delegated cgroup below a fake tree with the given directories.
func (f *fakeHost) cgroup(root string, dirs ...string) {
	for _, d := range append(dirs, root) {
		f.dir("cg/"+d, 0o755)
	}
	f.in.Probes.Delegation = func() (cgroupv2.Host, cgroupv2.Delegation, error) {
		return cgroupv2.Host{Mount: f.path("cg")}, cgroupv2.Delegation{Root: f.path("cg/" + root)}, nil
	}
}

// authority creates the certificate of the cluster's authority, valid from and until the beginning of these years.
func (f *fakeHost) authority(from, until int) {
	f.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	assert.NilError(f.t, err)
	year := func(n int) time.Time { return time.Date(n, 1, 1, 0, 0, 0, 0, time.UTC) }
	c := x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: year(from), NotAfter: year(until)}
	der, err := x509.CreateCertificate(rand.Reader, &c, &c, key.Public(), key)
	assert.NilError(f.t, err)
	var b bytes.Buffer
	assert.NilError(f.t, pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: der}))
	file := f.in.Data.ClusterCA()
	assert.NilError(f.t, os.MkdirAll(filepath.Dir(file), 0o700))
	assert.NilError(f.t, os.WriteFile(file, b.Bytes(), 0o600))
}

// A directory of the home that belongs to root gets its owner back, and no other directory is created.
func TestHomeThatBelongsToRoot(t *testing.T) {
	t.Parallel()
	testutil.Require(t, testutil.OrdinaryUser) // root has access whatever the mode
	f := goodHost(t)
	share := f.dir("home/dev/.local/share", 0o500)
	f.in.Env = append(f.in.Env, "HOME="+f.path("home/dev"))
	f.in.Data.Dir = f.path("home/dev/.local/share/rootlessnode/nodes/default")
	for check, want := range map[string]string{
		"home":     "/ROOT/home/dev/.local/share/rootlessnode/registry cannot be created: /ROOT/home/dev/.local/share: permission denied",
		"data-dir": "data dir /ROOT/home/dev/.local/share/rootlessnode/nodes/default: /ROOT/home/dev/.local/share is not writable by uid UID",
	} {
		assert.Equal(t, f.run(check), "fail: "+want+"\n  # make the account its owner:\n  sudo chown "+uidOf(f)+":4000 /ROOT/home/dev/.local/share\n")
	}
	assert.NilError(t, os.Chmod(share, 0o700))
	assert.Equal(t, f.run("home"), "pass: the account's nodes are listed in /ROOT/home/dev/.local/share/rootlessnode/registry\n")
}
