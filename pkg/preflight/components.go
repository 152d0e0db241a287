package preflight

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"github.com/rootlessnode/rootlessnode/config"
)

// required are the programs that a node of config c starts or lets others start.
func required(c *config.NodeConfig) []string {
	names := []string{
		"kubelet", "kube-proxy", "runc", "flanneld",
		"cni/bridge", "cni/host-local", "cni/loopback", "cni/portmap",
	}
	if c.CRI.Runtime == config.RuntimeContainerd {
		names = append(names, "containerd", "containerd-shim-runc-v2")
	}
	if c.ControlPlane.Embedded {
		names = append(names, "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
	}
	if c.EnforcesPolicies() {
		names = append(names, "kube-network-policies")
	}
	return names
}

func checkComponents(_ context.Context, h *host) []Finding {
	build := "# build them with `make components`, or name their directory: --components-dir DIR"
	if h.in.ComponentsDir == "" {
		return []Finding{fail("no components found: no %s in %s", ManifestFile, strings.Join(h.componentsTried(), ", ")).hint(build)}
	}
	cache := h.in.Data.Verified()
	if _, err := os.Stat(h.in.Data.Record()); err != nil {
		cache = "" // the record comes first
	}
	found, m := VerifyManifest(h.in.ComponentsDir, cache)
	if m == nil {
		return found
	}
	var missing []string
	for _, name := range required(h.cfg) {
		if _, ok := m.Component(name); !ok {
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		found = append(found, fail("%s lists no %s", filepath.Join(m.Dir, ManifestFile), strings.Join(missing, ", ")).hint(build))
	}
	for _, skew := range m.skews() {
		found = append(found, fail("%s", skew).hint(build))
	}
	return orPass(found, "%d components and %d images in %s are as listed", len(m.Components), len(m.Images), m.Dir)
}

// componentsTried is where the caller looked, or where it would have without naming a directory.
func (h *host) componentsTried() []string {
	if len(h.in.ComponentsTried) > 0 {
		return h.in.ComponentsTried
	}
	data := h.env("XDG_DATA_HOME")
	if home := h.env("HOME"); data == "" && home != "" {
		data = filepath.Join(home, ".local", "share")
	}
	_, tried, _ := FindComponents(h.cfg.ComponentsDir, h.in.Exe, data, filepath.SplitList(h.env("PATH")))
	return tried
}

// VerifyManifest compares the files in dir with its manifest: each must be there, of the size and the SHA-256 listed.
// What was hashed once is known by path, size, times, device and inode in cacheFile and not hashed again; the file is
// written anew when something was; an empty cacheFile is no cache. The findings are failures only; with the manifest unreadable, m is nil.
func VerifyManifest(dir, cacheFile string) (found []Finding, m *Manifest) {
	m, err := ReadManifest(dir)
	if err != nil {
		return []Finding{fail("%v", err).hint("# build them with `make components`, or name their directory: --components-dir DIR")}, nil
	}
	cache := readHashes(cacheFile)
	byFile := map[string][]ManifestEntry{}
	var files []string
	list := func(entries []ManifestEntry) {
		for _, e := range entries {
			f := m.File(e)
			if byFile[f] == nil {
				files = append(files, f)
			}
			byFile[f] = append(byFile[f], e)
		}
	}
	list(m.Components)
	programs := len(files)
	list(m.Images)
	faults := make([]string, len(files))
	var wg sync.WaitGroup
	slots := make(chan struct{}, runtime.NumCPU())
	for i, f := range files {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			faults[i] = verifyFile(f, byFile[f], i < programs, cache)
		})
	}
	wg.Wait()
	for i, fault := range faults {
		if fault != "" {
			names := entryNames(byFile[files[i]])
			found = append(found, fail("%s: %s", names, fault).with(map[string]string{"components": names, "path": files[i]}).
				hint("# build it anew: make components"))
		}
	}
	cache.write(cacheFile, files)
	return found, m
}

func verifyFile(path string, entries []ManifestEntry, program bool, cache *hashes) string {
	e := entries[0]
	st, err := fingerprintOf(path)
	switch {
	case err != nil:
		return err.Error()
	case !st.regular:
		return path + " is not a file"
	case program && !st.executable:
		return path + " is not executable"
	case st.Size != e.Size:
		return fmt.Sprintf("%s has %d bytes, %s says %d", path, st.Size, ManifestFile, e.Size)
	}
	sum, err := cache.sum(path, st)
	if err != nil {
		return err.Error()
	}
	for _, e := range entries {
		if sum != e.SHA256 {
			return fmt.Sprintf("%s is altered: SHA-256 %s, %s says %s", path, sum, ManifestFile, e.SHA256)
		}
	}
	return ""
}

func entryNames(entries []ManifestEntry) string {
	var names []string
	for _, e := range entries {
		names = append(names, e.Name)
	}
	return strings.Join(names, ", ")
}

// maxKubeletSkew is how many minor versions the kubelet and kube-proxy may be behind the API server, and
// maxControlSkew the same for the other control plane components (Kubernetes version skew policy).
const (
	maxKubeletSkew = 3
	maxControlSkew = 1
)

// skews tells of each component whose version does not go with the API server's.
func (m *Manifest) skews() []string {
	api, ok := m.Component("kube-apiserver")
	if !ok {
		return nil // a node that joins: the API server is another host's
	}
	apiVersion, ok := parseVersion(api.Version)
	if !ok {
		return []string{"kube-apiserver: version " + strconv.Quote(api.Version) + " is none"}
	}
	var out []string
	for _, c := range []struct {
		name   string
		behind int
	}{
		{"kubelet", maxKubeletSkew}, {"kube-proxy", maxKubeletSkew},
		{"kube-controller-manager", maxControlSkew}, {"kube-scheduler", maxControlSkew},
	} {
		e, ok := m.Component(c.name)
		if !ok {
			continue
		}
		v, ok := parseVersion(e.Version)
		switch behind := apiVersion[1] - v[1]; {
		case !ok:
			out = append(out, c.name+": version "+strconv.Quote(e.Version)+" is none")
		case v[0] != apiVersion[0] || behind < 0 || behind > c.behind:
			out = append(out, fmt.Sprintf("%s %s does not go with kube-apiserver %s: want the same minor version, or up to %d older",
				c.name, e.Version, api.Version, c.behind))
		}
	}
	return out
}

func parseVersion(s string) (minorVersion, bool) { return parseRelease(strings.TrimPrefix(s, "v")) }
