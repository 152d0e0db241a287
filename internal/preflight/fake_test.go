package preflight

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/internal/datadir"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/trial"
	"github.com/rootlessnode/rootlessnode/pkg/cgroupv2"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// fakeHost is a fake host: a directory tree and fake probes of the kernel.
type fakeHost struct {
	t    *testing.T
	root string
	in   Input
}

// goodHost returns a Debian 12 host that passes all checks, with the account dev.
func goodHost(t *testing.T) *fakeHost {
	t.Helper()
	f := &fakeHost{t: t, root: t.TempDir()}
	uid := os.Getuid()
	if uid == 0 {
		uid = 1000 // root may change the owner of files, so the test acts as an ordinary user
	}
	for path, text := range map[string]string{
		"etc/os-release":                               "ID=debian\nVERSION_ID=\"12\"\n",
		"etc/passwd":                                   fmt.Sprintf("root:x:0:0:root:/root:/bin/bash\ndev:x:%d:4000:,,,:/home/dev:/bin/bash\n", uid),
		"etc/subuid":                                   "other:100000:65536\ndev:165536:65536\n",
		"etc/subgid":                                   "dev:165536:65536\n",
		"proc/sys/kernel/osrelease":                    "6.1.0-30-amd64\n",
		"proc/meminfo":                                 "MemTotal:        8388608 kB\nMemAvailable:    4194304 kB\nSwapFree:              0 kB\n",
		"proc/sys/kernel/pid_max":                      "32768\n",
		"sys/devices/system/cpu/online":                "0-3\n",
		"proc/sys/user/max_user_namespaces":            "63470\n",
		"proc/sys/fs/inotify/max_user_instances":       "512\n",
		"proc/sys/fs/inotify/max_user_watches":         "524288\n",
		"proc/sys/net/ipv4/ip_unprivileged_port_start": "1024\n",
		"proc/self/status":                             "Name:\ttest\nNoNewPrivs:\t0\nSeccomp:\t0\n",
		"proc/self/limits": "Limit                     Soft Limit           Hard Limit           Units     \n" +
			"Max cpu time              unlimited            unlimited            seconds   \n" +
			"Max processes             63470                63470                processes \n" +
			"Max open files            1024                 1048576              files     \n",
		"etc/hosts":                         "127.0.0.1\tlocalhost\n",
		"etc/resolv.conf":                   "nameserver 192.0.2.53\n",
		"etc/ssl/certs/ca-certificates.crt": "-----BEGIN CERTIFICATE-----\n",
		"tmp/.keep":                         "",
		"proc/self/mountinfo":               "21 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n",
		"proc/net/route": "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n" +
			"eth0\t00000000\t0101A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n" +
			"eth0\t0001A8C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n",
		"proc/net/tcp":   "",
		"dev/net/tun":    "",
		"data/.keep":     "",
		"comp/bin/.keep": "",
		"bin/.keep":      "",
		"run/.keep":      "",
	} {
		f.write(path, text)
	}
	for _, p := range []string{"newuidmap", "newgidmap", "ip", "mount", "umount", "nsenter", "nft", "iptables", "slirp4netns", "sudo"} {
		f.program(p, "answers")
	}
	f.dir("data", 0o700)
	runtimeDir := f.dir(fmt.Sprintf("run/user/%d", uid), 0o700)
	assert.NilError(t, os.Lchown(runtimeDir, uid, -1))
	c := config.Default()
	c.Complete(config.HostFacts{Hostname: "node1", XDGDataHome: "/home/dev/.local/share"})
	f.in = Input{
		Config: c, UID: uid, Root: f.root, Exe: "/usr/local/bin/rootlessnode",
		Runtime: layout.NewRuntime("/run/user/4321", "default"), Data: layout.NewData(filepath.Join(f.root, "data")),
		ComponentsDir: f.components(map[string]string{}),
		Env:           []string{"PATH=" + filepath.Join(f.root, "bin"), "XDG_RUNTIME_DIR=" + runtimeDir},
		Probes: Probes{
			Statfs: func(string) (FileSystem, error) {
				return FileSystem{Type: 0xef53, Available: 50 << 30, Total: 100 << 30, InodesFree: 1 << 20, Inodes: 2 << 20}, nil
			},
			CloneUserNS: func(context.Context) error { return nil },
			PacketRules: func(context.Context, string, string) error { return nil },
			InUserNS:    func() bool { return false },
			RootOnly:    func(string) error { return nil },
			Listen:      func(string, string) error { return nil },
			MayMapIDs:   func(string, bool) (bool, error) { return true, nil },
			Trial:       func(context.Context, trial.Request) (trial.Result, error) { return nil, nil },
			Routes:      func() ([]route, error) { return nil, errors.New("no netlink") }, // then the file is read
			Inotify:     func(int) error { return nil },
			Now:         func() time.Time { return time.Date(2027, 1, 2, 3, 4, 5, 0, time.UTC) },
			BuildTime:   func() time.Time { return time.Date(2026, 12, 1, 0, 0, 0, 0, time.UTC) },
			IDs: func(string) (datadir.IDs, string, error) {
				ranges := []datadir.IDRange{{Start: 165536, Count: 65536}}
				return datadir.IDs{UID: uid, GID: 4000, Subuids: ranges, Subgids: ranges}, "dev", nil
			},
			Delegation: func() (cgroupv2.Host, cgroupv2.Delegation, error) {
				return cgroupv2.Host{Mount: "/sys/fs/cgroup"}, cgroupv2.Delegation{
					Root: "/sys/fs/cgroup/x", Source: cgroupv2.SourceCurrent, Available: []string{"cpu", "cpuset", "io", "memory", "pids"},
				}, nil
			},
		},
	}
	return f
}

// data creates a data dir with a record of these subordinate uids.
func (f *fakeHost) data(start, count int64) {
	f.t.Helper()
	now := datadir.IDs{
		UID: f.in.UID, GID: f.in.UID, Subuids: []datadir.IDRange{{Start: 1 << 17, Count: 1 << 16}}, Subgids: []datadir.IDRange{{Start: 1 << 17, Count: 1 << 16}},
	}
	was := now
	was.Subuids = []datadir.IDRange{{Start: start, Count: count}}
	assert.NilError(f.t, layout.WriteJSON(f.in.Data.Record(), datadir.Record{Format: datadir.Format, Name: "default", IDs: was}))
	assert.NilError(f.t, os.Lchown(f.in.Data.Record(), f.in.UID, -1))
	f.in.Probes.IDs = func(string) (datadir.IDs, string, error) { return now, "dev", nil }
}

// fault makes the trial fail at a step.
func (f *fakeHost) fault(step trial.Step, err error) {
	fault := trial.Fault{Message: err.Error()}
	errors.As(err, &fault.Errno)
	f.in.Probes.Trial = func(context.Context, trial.Request) (trial.Result, error) { return trial.Result{step: fault}, nil }
}

func (f *fakeHost) path(p string) string { return filepath.Join(f.root, p) }

func (f *fakeHost) write(path, text string) {
	f.t.Helper()
	assert.NilError(f.t, os.MkdirAll(filepath.Dir(f.path(path)), 0o755))
	assert.NilError(f.t, os.WriteFile(f.path(path), []byte(text), 0o644))
}

func (f *fakeHost) dir(path string, mode os.FileMode) string {
	f.t.Helper()
	assert.NilError(f.t, os.MkdirAll(f.path(path), 0o755))
	assert.NilError(f.t, os.Chmod(f.path(path), mode))
	return f.path(path)
}

func (f *fakeHost) remove(path string) {
	f.t.Helper()
	assert.NilError(f.t, os.RemoveAll(f.path(path)))
}

// program links name on PATH to a file in testdata/programs. Executing a file right after writing it can fail with ETXTBSY.
func (f *fakeHost) program(name, as string) {
	f.t.Helper()
	target, err := filepath.Abs(filepath.Join("testdata", "programs", as))
	assert.NilError(f.t, err)
	f.remove("bin/" + name)
	assert.NilError(f.t, os.Symlink(target, f.path("bin/"+name)))
}

func (f *fakeHost) set(path, value string) {
	f.t.Helper()
	assert.NilError(f.t, f.in.Config.Set(path, value))
}

func (f *fakeHost) statfs(fs FileSystem) {
	f.in.Probes.Statfs = func(string) (FileSystem, error) { return fs, nil }
}

// anonymous replaces the parts of a text that differ between runs.
func (f *fakeHost) anonymous(s string) string {
	id := fmt.Sprint(f.in.UID) // replace only in context, because the number may also occur elsewhere
	return strings.NewReplacer(f.root, "/ROOT", "uid "+id, "uid UID", "user/"+id, "user/UID", `"uid": "`+id+`"`, `"uid": "UID"`,
		" -o "+id, " -o UID").Replace(s)
}

// actionWords returns the parts of an action.
func actionWords(s errdefs.Step) string {
	words := append([]string{string(s.Action)}, s.Args...)
	if s.Sudo {
		words = append([]string{"sudo"}, words...)
	}
	return strings.Join(append(words, strings.Fields(s.Node+" "+s.As)...), " ")
}

// run runs one check and returns its findings as text: "level: message", then the hint's lines, indented.
func (f *fakeHost) run(name string) string {
	f.t.Helper()
	h := newHost(f.t.Context(), f.in)
	for _, c := range checks() {
		if c.Name != name {
			continue
		}
		var b strings.Builder
		for _, found := range h.finish(c.run(f.t.Context(), h)) {
			fmt.Fprintf(&b, "%s: %s\n", found.Level, found.Message)
			for line := range strings.Lines(found.Steps.Render(actionWords)) {
				b.WriteString("  " + strings.TrimRight(line, "\n") + "\n")
			}
		}
		return f.anonymous(b.String())
	}
	f.t.Fatalf("no check %s", name)
	return ""
}
