package dropin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
	"gotest.tools/v3/golden"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// fakeSystemd simulates systemctl for the units of one directory.
type fakeSystemd struct {
	dir     string
	props   map[string]string // of every unit, overriding the simulated ones
	alias   map[string]string
	reloads int
}

func (f *fakeSystemd) systemctl(_ context.Context, args ...string) ([]byte, error) {
	if args[0] == "daemon-reload" {
		f.reloads++
		return nil, nil
	}
	name := args[len(args)-1]
	if to, ok := f.alias[name]; ok {
		name = to
	}
	props := map[string]string{"Id": name, "LoadState": "loaded", "NeedDaemonReload": "no", "PrivateTmp": "no", "ProtectSystem": "no", "RestrictNamespaces": "no"}
	path := filepath.Join(f.dir, name)
	if _, err := os.Stat(path); err != nil {
		props["LoadState"], props["LoadError"] = "not-found", "org.freedesktop.systemd1.NoSuchUnit"
	}
	props["FragmentPath"] = path
	dropIns, err := filepath.Glob(path + ".d/*.conf")
	props["DropInPaths"] = strings.Join(dropIns, " ")
	for k, v := range f.props {
		props[k] = v
	}
	var b strings.Builder
	for k, v := range props {
		fmt.Fprintf(&b, "%s=%s\n", k, v)
	}
	return []byte(b.String()), err
}

// units creates a directory with unit files and drop-ins, and returns options for it.
func units(t *testing.T, files map[string]string) (*fakeSystemd, Options) {
	t.Helper()
	f := &fakeSystemd{dir: t.TempDir(), props: map[string]string{}}
	for name, text := range files {
		path := filepath.Join(f.dir, name)
		assert.NilError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		assert.NilError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return f, Options{Name: "kubens", Exe: "/usr/bin/rootlessnode", Dir: f.dir, Systemctl: f.systemctl, RootOnly: func(string) error { return nil }}
}

// kubeadm contains the units of a kubelet from kubeadm: the command is in a drop-in, and most of it in variables.
var kubeadm = map[string]string{
	"kubelet.service": `[Unit]
Description=kubelet: The Kubernetes Node Agent
After=network-online.target

[Service]
ExecStart=/usr/bin/kubelet
Restart=always
RestartSec=10

[Install]
WantedBy=multi-user.target
`,
	"kubelet.service.d/10-kubeadm.conf": `# Note: This dropin only works with kubeadm and kubelet v1.11+
[Service]
Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf"
EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env
ExecStart=
ExecStart=/usr/bin/kubelet $KUBELET_KUBECONFIG_ARGS $KUBELET_EXTRA_ARGS
`,
	"containerd.service": `[Service]
ExecStartPre=-/sbin/modprobe overlay
ExecStart=/usr/local/bin/containerd
Type=notify
Delegate=yes
KillMode=process
`,
}

// tricky uses everything that the syntax allows.
const tricky = `[Unit]
ExecStart=/of/another/section

[Service]
Type=oneshot
ExecStart=/bin/reset later
 ExecStart =
ExecStart=-@"/usr/bin/with space" 'argv 0' one \
# a comment between
; another
   "two  \"words\"" '$NOT a "var"' ${B} $C $$D %n %% \x41 a\\ \
  end
ExecStart=:+"-/bin/echo" $kept ; !!/bin/second \; ';' ";" a;b ; @/bin/third $ARGV0
not an assignment
ExecStartPre=/bin/pre
ExecStart=kubelet
ExecStart=!/opt/$dollar/%H/bin'quoted part'/prog --flag="a b"  --tail=\
`

func TestGoldenUnits(t *testing.T) {
	t.Parallel()
	for name, files := range map[string]map[string]string{
		"kubeadm": kubeadm,
		"tricky":  {"tricky.service": tricky, "tricky.service.d/50-none.conf": "[Service]\nEnvironment=A=b\n"},
	} {
		f, o := units(t, files)
		var names []string
		for n := range files {
			if filepath.Ext(n) == ".service" {
				names = append(names, n)
			}
		}
		slices.Sort(names)
		p, err := NewPlan(t.Context(), o, names)
		assert.NilError(t, err)
		var b strings.Builder
		for _, file := range p.Files {
			fmt.Fprintf(&b, "==> %s\n%s", strings.TrimPrefix(file.Path, f.dir), file.Text)
		}
		golden.Assert(t, b.String(), name+".txt")
	}
}

// snapshot returns every file below dir with its text.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	assert.NilError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			all[path] = "directory"
			return err
		}
		text, err := os.ReadFile(path)
		all[path] = string(text)
		return err
	}))
	return all
}

func TestApplyAndRemove(t *testing.T) {
	t.Parallel()
	f, o := units(t, kubeadm)
	before := snapshot(t, f.dir)
	p, err := NewPlan(t.Context(), o, []string{"kubelet.service", "containerd.service"})
	assert.NilError(t, err)
	assert.DeepEqual(t, snapshot(t, f.dir), before)
	written, err := p.Apply(t.Context())
	assert.NilError(t, err)
	assert.Check(t, is.Len(written, 3))
	assert.Equal(t, f.reloads, 1)

	// Planning again wraps the unit's own command and not the wrapped one.
	after := snapshot(t, f.dir)
	p, err = NewPlan(t.Context(), o, []string{"kubelet.service", "containerd.service"})
	assert.NilError(t, err)
	written, err = p.Apply(t.Context())
	assert.NilError(t, err)
	assert.Check(t, is.Len(written, 0))
	assert.DeepEqual(t, snapshot(t, f.dir), after)
	assert.Equal(t, f.reloads, 1)

	// While a drop-in is left, the unit of the namespace stays.
	removed, err := Remove(t.Context(), o, []string{"containerd.service"})
	assert.NilError(t, err)
	assert.DeepEqual(t, removed, []string{filepath.Join(f.dir, "containerd.service.d", FileName)})
	_, err = Remove(t.Context(), o, []string{"containerd.service"})
	assert.Check(t, is.Error(err, "containerd.service has no drop-in for mount namespace kubens"))
	removed, err = Remove(t.Context(), o, nil)
	assert.NilError(t, err)
	assert.Check(t, is.Len(removed, 2))
	assert.DeepEqual(t, snapshot(t, f.dir), before)
	removed, err = Remove(t.Context(), o, nil)
	assert.NilError(t, err)
	assert.Check(t, is.Len(removed, 0))
	assert.Equal(t, f.reloads, 3)
}

// TestRemoveLeavesOthers checks that Remove keeps the files of other namespaces, and directories that existed before or
// contain other files.
func TestRemoveLeavesOthers(t *testing.T) {
	t.Parallel()
	f, o := units(t, map[string]string{"a.service": "[Service]\nExecStart=/bin/a\n", "b.service": "[Service]\nExecStart=/bin/b\n"})
	assert.NilError(t, os.Mkdir(filepath.Join(f.dir, "b.service.d"), 0o755))
	other := o
	other.Name = "other"
	for _, x := range []struct {
		o Options
		u string
	}{{o, "a.service"}, {other, "b.service"}} {
		p, err := NewPlan(t.Context(), x.o, []string{x.u})
		assert.NilError(t, err)
		_, err = p.Apply(t.Context())
		assert.NilError(t, err)
	}
	own := filepath.Join(f.dir, "a.service.d", "own.conf")
	assert.NilError(t, os.WriteFile(own, nil, 0o644))
	removed, err := Remove(t.Context(), o, nil)
	assert.NilError(t, err)
	assert.Check(t, is.Len(removed, 2))
	removed, err = Remove(t.Context(), other, nil)
	assert.NilError(t, err)
	assert.Check(t, is.Len(removed, 2))
	var left []string
	for path := range snapshot(t, f.dir) {
		left = append(left, strings.TrimPrefix(path, f.dir))
	}
	slices.Sort(left)
	assert.DeepEqual(t, left, []string{"", "/a.service", "/a.service.d", "/a.service.d/own.conf", "/b.service", "/b.service.d"})
}

func TestStale(t *testing.T) {
	t.Parallel()
	f, o := units(t, kubeadm)
	p, err := NewPlan(t.Context(), o, []string{"kubelet.service", "containerd.service"})
	assert.NilError(t, err)
	_, err = p.Apply(t.Context())
	assert.NilError(t, err)
	stale, err := Stale(t.Context(), o)
	assert.NilError(t, err)
	assert.Check(t, is.Len(stale, 0))
	assert.NilError(t, os.WriteFile(filepath.Join(f.dir, "containerd.service"), []byte("[Service]\nExecStart=/usr/bin/containerd -l debug\n"), 0o644))
	assert.NilError(t, os.Remove(filepath.Join(f.dir, "kubelet.service")))
	stale, err = Stale(t.Context(), o)
	assert.NilError(t, err)
	assert.Check(t, is.Len(stale, 2))
	assert.Check(t, is.Equal(stale[0], "containerd.service: its command has changed since the drop-in was written"))
	assert.Check(t, is.Contains(stale[1], "kubelet.service: systemd reports the unit as not-found"))
}

func TestErrorsAreJoined(t *testing.T) {
	t.Parallel()
	f, o := units(t, map[string]string{
		"quote.service": "[Service]\nExecStart=/bin/a \"b\nExecStart=/bin/a 'c\n", "none.service": "[Service]\nType=oneshot\n",
		"shell.service": "[Service]\nExecStart=|echo hi\n", "argv0.service": "[Service]\nExecStart=@/bin/sh\n",
		"late.service": "[Service]\nExecStart=/bin/a\n", "late.service.d/zzz.conf": "[Service]\nExecStart=\nExecStart=/bin/b\n",
		"x.socket": "[Socket]\n",
	})
	_, err := NewPlan(t.Context(), o, []string{"quote.service", "none.service", "shell.service", "argv0.service", "late.service", "gone.service", "x.socket"})
	assert.Equal(t, errdefs.ExitCode(err), errdefs.ExitConfig)
	for _, want := range []string{
		"drop-in for quote.service: missing closing quote: /bin/a \"b", "missing closing quote: /bin/a 'c", "none.service: the unit has no ExecStart", "through a shell (|)",
		"@ requires a second word", "zzz.conf sets ExecStart and sorts after", "gone.service: systemd reports the unit as not-found", "x.socket is not a service",
	} {
		assert.Check(t, is.Contains(err.Error(), want))
	}

	f.props = map[string]string{"User": "kube", "RootDirectory": "/srv", "RestrictNamespaces": "net user", "PrivateTmp": "yes", "ProtectSystem": "full"}
	_, err = NewPlan(t.Context(), o, []string{"none.service"})
	for _, want := range []string{"User=kube: only root", "RootDirectory=/srv: a service with this setting", "RestrictNamespaces=net user: the service may not"} {
		assert.Check(t, is.ErrorContains(err, want))
	}
	f.props = map[string]string{"PrivateTmp": "yes", "ProtectSystem": "full", "RestrictNamespaces": "mnt user"}
	assert.NilError(t, os.WriteFile(filepath.Join(f.dir, "ok.service"), []byte("[Service]\nExecStart=/bin/a"), 0o644))
	p, err := NewPlan(t.Context(), o, []string{"ok.service"})
	assert.NilError(t, err)
	assert.DeepEqual(t, p.Notes, []string{
		"ok.service: PrivateTmp=yes has no effect, because the service leaves the mount namespace that it applies to",
		"ok.service: ProtectSystem=full has no effect, because the service leaves the mount namespace that it applies to",
	})
	f.props = map[string]string{"NeedDaemonReload": "yes"}
	_, err = NewPlan(t.Context(), o, []string{"ok.service"})
	assert.Equal(t, errdefs.ExitCode(err), errdefs.ExitPreflight)
	assert.DeepEqual(t, errdefs.ReportOf(err).Hints, []string{"systemctl daemon-reload"})
}

func TestAliasAndShortName(t *testing.T) {
	t.Parallel()
	f, o := units(t, map[string]string{"crio.service": "[Service]\nExecStart=/usr/bin/crio\n"})
	f.props["IgnoreSIGPIPE"] = "yes" // systemd's default
	f.alias = map[string]string{"cri-o.service": "crio.service"}
	p, err := NewPlan(t.Context(), o, []string{"cri-o", "crio", "crio.service"})
	assert.NilError(t, err)
	assert.Check(t, is.Len(p.Files, 2))
	assert.Check(t, is.Equal(p.Files[1].Path, filepath.Join(f.dir, "crio.service.d", FileName)))
	assert.Check(t, is.Contains(p.Files[1].Text, "mountns exec --name kubens --ignore-sigpipe -- /usr/bin/crio\n"))
}

func TestSystemdThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	_, o := units(t, nil)
	o.Systemctl = func(context.Context, ...string) ([]byte, error) { return nil, errors.New("no bus") }
	_, err := NewPlan(t.Context(), o, []string{"a", "b"})
	assert.Check(t, is.Error(err, "drop-in for a: no bus\ndrop-in for b: no bus"))
}

func TestExeThatNeedsQuotes(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{"/usr/bin/x": "/usr/bin/x", "/a b/x": `"/a b/x"`, "/50%/x": `"/50%%/x"`, `/q"\/x`: `"/q\"\\/x"`, "/it's/x": `"/it's/x"`} {
		assert.Check(t, is.Equal(quoteProgram(path), want))
	}
}

// TestProgramOfAnAccount checks that only root may be able to replace the program, because systemd executes it as root.
func TestProgramOfAnAccount(t *testing.T) {
	t.Parallel()
	_, o := units(t, kubeadm)
	o.RootOnly = func(path string) error { return errors.New(path + " belongs to uid 7") }
	_, err := NewPlan(t.Context(), o, []string{"kubelet"})
	assert.Error(t, err, "drop-in: /usr/bin/rootlessnode belongs to uid 7; install below /usr/local first")
	assert.ErrorIs(t, err, errdefs.ErrPreflight)
	o.RootOnly, o.Exe = func(string) error { return nil }, "/usr/bin/a\nb"
	_, err = NewPlan(t.Context(), o, []string{"kubelet"})
	assert.ErrorContains(t, err, "cannot be used in a unit")
}
