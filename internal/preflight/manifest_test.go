package preflight

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/config"
)

// components creates a directory with all required components and one image. Their version is 1.37.2 unless set in versions.
func (f *fakeHost) components(versions map[string]string) string {
	f.t.Helper()
	m := Manifest{Schema: manifestSchema}
	entry := func(name, path string) ManifestEntry {
		text := "the program " + path
		f.write("comp/bin/"+path, text)
		assert.NilError(f.t, os.Chmod(f.path("comp/bin/"+path), 0o755))
		version := versions[name]
		if version == "" {
			version = "1.37.2"
		}
		return ManifestEntry{Name: name, Version: version, Path: path, SHA256: sum(text), Size: int64(len(text))}
	}
	for _, name := range required(config.Default()) {
		path := name
		if name == "kube-apiserver" || name == "kube-scheduler" {
			path = "kubernetes" // one file with several names
		}
		m.Components = append(m.Components, entry(name, path))
	}
	m.Images = []ManifestEntry{entry("registry.k8s.io/pause:3.10.2", "../share/pause.tar")}
	f.manifest(m)
	return f.path("comp/bin")
}

func sum(text string) string {
	h := sha256.Sum256([]byte(text))
	return hex.EncodeToString(h[:])
}

func (f *fakeHost) manifest(m Manifest) {
	f.t.Helper()
	b, err := json.Marshal(m)
	assert.NilError(f.t, err)
	f.write("comp/bin/manifest.json", string(b))
}

func TestComponents(t *testing.T) {
	t.Parallel()
	const rebuild = "  # rebuild it: make components\n"
	const build = "  # build them with `make components`, or name their directory: --components-dir DIR\n"
	for _, tc := range []struct {
		name string
		set  func(*fakeHost)
		want string
	}{
		{"good", func(*fakeHost) {}, "pass: 16 components and 1 images in /ROOT/comp/bin match the manifest\n"},
		{"none", func(f *fakeHost) {
			f.in.ComponentsDir, f.in.ComponentsTried = "", []string{"/a", "/b"}
		}, "fail: no components found: no manifest.json in /a, /b\n" + build},
		{"none, searched by check", func(f *fakeHost) {
			f.in.ComponentsDir, f.in.Env = "", append(f.in.Env, "HOME=/h")
			f.in.Exe = f.path("usr/bin/rootlessnode") // the host that runs the test may have components installed
		}, "fail: no components found: no manifest.json in /ROOT/usr/libexec/rootlessnode, /h/.local/share/rootlessnode/bin, /ROOT/bin\n" + build},
		{"missing file", func(f *fakeHost) { f.remove("comp/bin/kubelet") },
			"fail: kubelet: stat /ROOT/comp/bin/kubelet: no such file or directory\n" + rebuild},
		{"altered, shared by two", func(f *fakeHost) { f.write("comp/bin/kubernetes", "the program kuberneteX") },
			"fail: kube-apiserver, kube-scheduler: /ROOT/comp/bin/kubernetes was modified: its SHA-256 is " + sum("the program kuberneteX") +
				", but manifest.json lists " + sum("the program kubernetes") + "\n" + rebuild},
		{"truncated image", func(f *fakeHost) { f.write("comp/share/pause.tar", "t") },
			"fail: registry.k8s.io/pause:3.10.2: /ROOT/comp/share/pause.tar has 1 bytes, but manifest.json lists 30\n" + rebuild},
		{"not executable", func(f *fakeHost) { assert.NilError(f.t, os.Chmod(f.path("comp/bin/etcd"), 0o644)) },
			"fail: etcd: /ROOT/comp/bin/etcd is not executable\n" + rebuild},
		{"directory", func(f *fakeHost) { f.remove("comp/bin/runc"); f.dir("comp/bin/runc", 0o755) },
			"fail: runc: /ROOT/comp/bin/runc is not a regular file\n" + rebuild},
		{"not listed", func(f *fakeHost) {
			m, err := ReadManifest(f.in.ComponentsDir)
			assert.NilError(f.t, err)
			m.Components = slices.DeleteFunc(m.Components, func(e ManifestEntry) bool { return e.Name == "kubelet" || e.Name == "kube-proxy" })
			f.manifest(*m)
		}, "fail: /ROOT/comp/bin/manifest.json does not list kubelet, kube-proxy\n" + build},
		{"no control plane wanted", func(f *fakeHost) {
			m, err := ReadManifest(f.in.ComponentsDir)
			assert.NilError(f.t, err)
			control := []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "metrics-server"}
			m.Components = slices.DeleteFunc(m.Components, func(e ManifestEntry) bool { return slices.Contains(control, e.Name) })
			f.manifest(*m)
			f.set("controlPlane.embedded", "false")
		}, "pass: 11 components and 1 images in /ROOT/comp/bin match the manifest\n"},
		{"broken manifest", func(f *fakeHost) { f.write("comp/bin/manifest.json", "{") },
			"fail: /ROOT/comp/bin/manifest.json: unexpected end of JSON input\n" + build},
		{"other schema", func(f *fakeHost) { f.write("comp/bin/manifest.json", `{"schema":2}`) },
			"fail: /ROOT/comp/bin/manifest.json: unsupported schema 2, must be 1\n" + build},
		{"absolute path", func(f *fakeHost) {
			f.write("comp/bin/manifest.json", `{"schema":1,"components":[{"name":"x","path":"/x","sha256":"0"}]}`)
		}, "fail: /ROOT/comp/bin/manifest.json: entry x: path /x is not relative\n" + build},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			f := goodHost(t)
			tc.set(f)
			assert.Equal(t, f.run("components"), tc.want)
		})
	}
}

func TestComponentSkew(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ component, version, want string }{
		{"kubelet", "v1.34.9", ""},
		{"kubelet", "v1.33.0", "kubelet v1.33.0 is not compatible with kube-apiserver 1.37.2: its minor version must be the same, or up to 3 older"},
		{"kubelet", "1.38.0", "kubelet 1.38.0 is not compatible with kube-apiserver 1.37.2: its minor version must be the same, or up to 3 older"},
		{"kube-proxy", "1.34.0-rc.1", ""},
		{"kube-scheduler", "1.36.0", ""},
		{"kube-scheduler", "1.35.0", "kube-scheduler 1.35.0 is not compatible with kube-apiserver 1.37.2: its minor version must be the same, or up to 1 older"},
		{"kube-controller-manager", "2.37.0", "kube-controller-manager 2.37.0 is not compatible with kube-apiserver 1.37.2: its minor version must be the same, or up to 1 older"},
		{"kubelet", "latest", `kubelet: invalid version "latest"`},
		{"kube-apiserver", "x", `kube-apiserver: invalid version "x"`},
		{"containerd", "2.4.2", ""},
	} {
		m := &Manifest{}
		for _, name := range required(config.Default()) {
			v := "1.37.2"
			if name == tc.component {
				v = tc.version
			}
			m.Components = append(m.Components, ManifestEntry{Name: name, Version: v})
		}
		var want []string
		if tc.want != "" {
			want = []string{tc.want}
		}
		assert.DeepEqual(t, m.skews(), want)
	}
}

// TestVerifyManifestCache checks that the second call hashes only files that changed.
func TestVerifyManifestCache(t *testing.T) {
	t.Parallel()
	f := goodHost(t)
	cache := f.in.Data.Verified()
	found, m := VerifyManifest(f.in.ComponentsDir, "", cache)
	assert.Equal(t, len(found), 0)
	e, ok := m.Component("kubelet")
	assert.Assert(t, ok)

	// A wrong hash in the cache shows that the cache is used.
	b, err := os.ReadFile(cache)
	assert.NilError(t, err)
	var stored verifiedFiles
	assert.NilError(t, json.Unmarshal(b, &stored))
	known := stored.Files
	assert.Equal(t, known[m.File(e)].SHA256, e.SHA256)
	lie := known[m.File(e)]
	lie.SHA256 = "lie"
	known[m.File(e)] = lie
	b, err = json.Marshal(stored)
	assert.NilError(t, err)
	assert.NilError(t, os.WriteFile(cache, b, 0o600))
	found, _ = VerifyManifest(f.in.ComponentsDir, "", cache)
	assert.Equal(t, len(found), 1)

	// The same content with another time stamp: hashed again, and correct.
	assert.NilError(t, os.Chtimes(m.File(e), time.Time{}, time.Unix(1, 0)))
	found, _ = VerifyManifest(f.in.ComponentsDir, "", cache)
	assert.Equal(t, len(found), 0)

	// A corrupt or unwritable cache is not an error.
	assert.NilError(t, os.WriteFile(cache, []byte("{"), 0o600))
	found, _ = VerifyManifest(f.in.ComponentsDir, "", cache)
	assert.Equal(t, len(found), 0)
	found, _ = VerifyManifest(f.in.ComponentsDir, "", filepath.Join(f.root, "absent", "v.json"))
	assert.Equal(t, len(found), 0)
	_, err = os.Stat(filepath.Join(f.root, "absent"))
	assert.ErrorIs(t, err, os.ErrNotExist)
}

func TestFindComponents(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	at := func(p string) string { return filepath.Join(root, p) }
	put := func(dir string) {
		assert.NilError(t, os.MkdirAll(at(dir), 0o755))
		assert.NilError(t, os.WriteFile(filepath.Join(at(dir), ManifestFile), nil, 0o644))
	}
	assert.NilError(t, os.MkdirAll(at("pkg/bin"), 0o755))
	assert.NilError(t, os.MkdirAll(at("links"), 0o755))
	assert.NilError(t, os.WriteFile(at("pkg/bin/rootlessnode"), nil, 0o755))
	assert.NilError(t, os.Symlink(at("pkg/bin/rootlessnode"), at("links/rootlessnode")))
	find := func(explicit string) (string, error) {
		dir, tried, err := FindComponents(explicit, at("links/rootlessnode"), at("xdg"), []string{"relative", at("path1"), at("path2")})
		if explicit == "" && err != nil {
			assert.DeepEqual(t, tried, []string{at("pkg/libexec/rootlessnode"), at("xdg/rootlessnode/bin"), at("path1"), at("path2")})
		}
		return dir, err
	}
	_, err := find("")
	assert.ErrorContains(t, err, "find components: no manifest.json in")
	for _, dir := range []string{"path2", "path1", "xdg/rootlessnode/bin", "pkg/libexec/rootlessnode"} {
		put(dir) // each has precedence over the previous one
		got, err := find("")
		assert.NilError(t, err)
		assert.Equal(t, got, at(dir))
	}
	_, err = find(at("elsewhere"))
	assert.Error(t, err, "find components: no manifest.json in "+at("elsewhere"))
	put("elsewhere")
	got, err := find(at("elsewhere"))
	assert.NilError(t, err)
	assert.Equal(t, got, at("elsewhere"))
}
