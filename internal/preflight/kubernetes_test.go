package preflight

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/config"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// older adds Kubernetes 1.36, whose programs are one file.
func (f *fakeHost) older() {
	f.t.Helper()
	const text = "the older program"
	f.write("comp/bin/kubernetes-1.36/kubernetes", text)
	assert.NilError(f.t, os.Chmod(f.path("comp/bin/kubernetes-1.36/kubernetes"), 0o755))
	assert.NilError(f.t, os.Symlink("kubernetes", f.path("comp/bin/kubernetes-1.36/kubelet")))
	m := Manifest{Schema: manifestSchema}
	for _, name := range []string{"kubelet", "kube-proxy", "kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		m.Components = append(m.Components, ManifestEntry{Name: name, Version: "v1.36.3", Path: "kubernetes", SHA256: sum(text), Size: int64(len(text))})
	}
	b, err := json.Marshal(m)
	assert.NilError(f.t, err)
	f.write("comp/bin/kubernetes-1.36/manifest.json", string(b))
}

// TestOlderKubernetes checks that the configuration selects one of two versions of Kubernetes, with all other components.
func TestOlderKubernetes(t *testing.T) {
	t.Parallel()
	f := goodHost(t)
	f.older()
	cfg := config.Default()
	cfg.ComponentsDir = f.in.ComponentsDir
	for _, tc := range []struct{ minor, version, kubelet string }{
		{"", "1.37.2", "kubelet"},
		{"1.37", "1.37.2", "kubelet"},
		{"1.36", "v1.36.3", "kubernetes-1.36/kubelet"},
	} {
		cfg.KubernetesVersion = tc.minor
		m, err := ManifestOf(cfg)
		assert.NilError(t, err)
		kubelet, _ := m.Component("kubelet")
		etcd, _ := m.Component("etcd")
		assert.Equal(t, kubelet.Version+" "+etcd.Version, tc.version+" 1.37.2")
		dirs := ProgramDirs(cfg)
		assert.Equal(t, Program(dirs, "kubelet"), filepath.Join(cfg.ComponentsDir, tc.kubelet))
		assert.Equal(t, Program(dirs, "etcd"), filepath.Join(cfg.ComponentsDir, "etcd"))
	}
	assert.Assert(t, HasKubernetes(cfg.ComponentsDir, "1.36"))
	assert.Assert(t, !HasKubernetes(cfg.ComponentsDir, "1.35"))

	cfg.KubernetesVersion = "1.35"
	_, err := ManifestOf(cfg)
	assert.ErrorIs(t, err, errdefs.ErrConfig)
	assert.Error(t, err, "kubernetesVersion: v1.35: not among the components in "+cfg.ComponentsDir+", which have v1.37, v1.36")
	assert.Assert(t, cmp.Contains(errdefs.ReportOf(err).Hints[0], "start the node kubernetesVersion=v1.37"))
}

// TestDamagedOlderKubernetes checks that the files of the selected version are verified, and only these.
func TestDamagedOlderKubernetes(t *testing.T) {
	t.Parallel()
	f := goodHost(t)
	f.older()
	f.write("comp/bin/kubernetes-1.36/kubernetes", "another program")
	assert.Assert(t, cmp.Contains(f.run("components"), "pass: "))
	f.set("kubernetesVersion", "1.36")
	assert.Assert(t, cmp.Contains(f.run("components"), "/ROOT/comp/bin/kubernetes-1.36/kubernetes has 15 bytes, but manifest.json lists 17"))
}
