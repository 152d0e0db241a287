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
	"github.com/rootlessnode/rootlessnode/internal/component/apiserver"
	"github.com/rootlessnode/rootlessnode/internal/component/catalogue"
)

// required returns the names of the component programs that a node with config c runs, directly or indirectly.
func required(c *config.NodeConfig) []string {
	var names []string
	for _, e := range catalogue.Enabled(c) {
		names = append(names, e.Programs...)
	}
	return names
}

func checkComponents(_ context.Context, h *host) []Finding {
	build := "# build them with `make components`, or name their directory: --components-dir DIR"
	if h.in.ComponentsDir == "" {
		return []Finding{fail("no components found: no %s in %s", ManifestFile, strings.Join(componentsTried(h), ", ")).hint(build)}
	}
	cache := h.in.Data.Verified()
	if _, err := os.Stat(h.in.Data.Record()); err != nil {
		cache = "" // do not write to a data dir that has no record yet
	}
	found, m := VerifyManifest(h.in.ComponentsDir, h.cfg.KubernetesVersion, cache)
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
		found = append(found, fail("%s does not list %s", filepath.Join(m.Dir, ManifestFile), strings.Join(missing, ", ")).hint(build))
	}
	for _, skew := range m.skews() {
		found = append(found, fail("%s", skew).hint(build))
	}
	return orPass(found, "%d components and %d images in %s match the manifest", len(m.Components), len(m.Images), m.Dir)
}

// componentsTried returns the directories that the caller searched, or else those that FindComponents searches.
func componentsTried(h *host) []string {
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

// VerifyManifest compares the files in dir with its manifest: each must exist and have the listed size and SHA-256. kubernetes is the minor
// version of Kubernetes, or "" for that of the manifest. Hashes are cached in cacheFile by path, size, times, device and inode; an empty
// cacheFile disables the cache. It returns failures only. m is nil if the manifest cannot be read.
func VerifyManifest(dir, kubernetes, cacheFile string) (found []Finding, m *Manifest) {
	m, err := readManifest(dir, kubernetes)
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
				hint("# rebuild it: make components"))
		}
	}
	cache.write(cacheFile, files)
	return found, m
}

func verifyFile(path string, entries []ManifestEntry, program bool, cache *hashCache) string {
	e := entries[0]
	st, err := fingerprintOf(path)
	switch {
	case err != nil:
		return err.Error()
	case !st.regular:
		return path + " is not a regular file"
	case program && !st.executable:
		return path + " is not executable"
	case st.Size != e.Size:
		return fmt.Sprintf("%s has %d bytes, but %s lists %d", path, st.Size, ManifestFile, e.Size)
	}
	sum, err := cache.sum(path, st)
	if err != nil {
		return err.Error()
	}
	for _, e := range entries {
		if sum != e.SHA256 {
			return fmt.Sprintf("%s was modified: its SHA-256 is %s, but %s lists %s", path, sum, ManifestFile, e.SHA256)
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

// skews returns a message for each component whose version is not compatible with that of the API server.
func (m *Manifest) skews() []string {
	api, ok := m.Component(apiserver.Name)
	if !ok {
		return nil // a worker: the API server runs on another host
	}
	apiVersion, ok := parseVersion(api.Version)
	if !ok {
		return []string{api.Name + ": invalid version " + strconv.Quote(api.Version)}
	}
	var out []string
	for _, c := range catalogue.All() {
		e, ok := m.Component(c.Name)
		if !ok || c.VersionSkew == 0 {
			continue
		}
		v, ok := parseVersion(e.Version)
		switch behind := apiVersion[1] - v[1]; {
		case !ok:
			out = append(out, c.Name+": invalid version "+strconv.Quote(e.Version))
		case v[0] != apiVersion[0] || behind < 0 || behind > c.VersionSkew:
			out = append(out, fmt.Sprintf("%s %s is not compatible with %s %s: its minor version must be the same, or up to %d older",
				c.Name, e.Version, api.Name, api.Version, c.VersionSkew))
		}
	}
	return out
}

func parseVersion(s string) (minorVersion, bool) { return parseRelease(strings.TrimPrefix(s, "v")) }
