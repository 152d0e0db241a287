package noderole

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/kubeapi"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// fakeCluster records the sets that are applied.
type fakeCluster struct {
	mu      sync.Mutex
	sets    map[string]kubeapi.StoredSet
	applied []string // name, and "keep" if nothing may be deleted
	removed []string
	fault   map[string]error // by name
	version int
	watches map[string]func(kubeapi.ObjectState)
	rounds  int
}

func (f *fakeCluster) ApplySet(_ context.Context, s *kubeapi.Set, prune bool) ([]kubeapi.ObjectState, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	text := s.Name
	if !prune {
		text += " keep"
	}
	f.applied = append(f.applied, text)
	f.sets[s.Name] = kubeapi.StoredSet{Name: s.Name, Source: s.Source}
	var all []kubeapi.ObjectState
	for id := range s.Objects() {
		f.version++
		all = append(all, kubeapi.ObjectState{ObjectID: id, Version: strconv.Itoa(f.version)})
	}
	return all, f.fault[s.Name]
}

func (f *fakeCluster) WatchSet(ctx context.Context, s *kubeapi.Set, fn func(kubeapi.ObjectState)) error {
	f.mu.Lock()
	f.watches[s.Name] = fn
	f.mu.Unlock()
	<-ctx.Done()
	return ctx.Err()
}

func (f *fakeCluster) StoredSets(context.Context) ([]kubeapi.StoredSet, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rounds++
	return slices.Collect(maps.Values(f.sets)), nil
}

func (f *fakeCluster) RemoveSet(_ context.Context, name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.sets, name)
	f.removed = append(f.removed, name)
	return nil
}

// take returns what was applied since the last call.
func (f *fakeCluster) take() (applied, removed []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	applied, removed = f.applied, f.removed
	f.applied, f.removed = nil, nil
	return applied, removed
}

const configMap = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: "

// addonTest is a watch whose rounds the test runs.
type addonTest struct {
	*testing.T
	w       *addonWatch
	dir     string
	cluster *fakeCluster
	hub     *status.Hub
}

func newAddonTest(t *testing.T, stored ...kubeapi.StoredSet) *addonTest {
	dir := t.TempDir()
	a := &addonTest{T: t, dir: filepath.Join(dir, "addons"), hub: status.NewHub(status.Status{}, status.Options{})}
	t.Cleanup(a.hub.Close)
	assert.NilError(t, os.Mkdir(a.dir, 0o700))
	a.cluster = &fakeCluster{sets: map[string]kubeapi.StoredSet{}, fault: map[string]error{}, watches: map[string]func(kubeapi.ObjectState){}}
	for _, s := range stored {
		a.cluster.sets[s.Name] = s
	}
	user := filepath.Join(dir, "user") // does not exist
	a.w = &addonWatch{
		paths: []string{a.dir, user}, optional: user, log: silentLog(), running: map[string]*runningAddon{}, changed: make(chan struct{}, 1),
	}
	t.Cleanup(func() {
		for _, r := range a.w.running {
			r.stop()
		}
	})
	return a
}

func (a *addonTest) write(name, text string) {
	a.Helper()
	path := filepath.Join(a.dir, name)
	assert.NilError(a, os.MkdirAll(filepath.Dir(path), 0o700))
	assert.NilError(a, os.WriteFile(path, []byte(text), 0o600))
}

// round runs a round and checks what it applied and removed, as words.
func (a *addonTest) round(applied, removed string) *status.Condition {
	a.Helper()
	a.w.round(a.Context(), a.Context(), a.cluster, conditionReporter{status.ConditionAddons, a.hub})
	gotApplied, gotRemoved := a.cluster.take()
	assert.Equal(a, strings.Join(gotApplied, ","), applied)
	assert.Equal(a, strings.Join(gotRemoved, ","), removed)
	s := a.hub.Snapshot()
	return s.Condition(status.ConditionAddons)
}

func TestAddons(t *testing.T) {
	t.Parallel()
	a := newAddonTest(t)
	assert.Assert(t, a.round("", "") == nil, "no condition without addons")

	a.write("web.yaml", configMap+"web}\n")
	a.write("db/20-data.yml", configMap+"data}\n")
	a.write("db/10-first/space.json", `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "db"}}`)
	a.write("README.md", "text")
	a.write(".hidden.yaml", "a: [")
	a.write("db/.git/config.yaml", "a: [")
	c := a.round("db,web", "")
	assert.Assert(t, c.OK && !c.Warning && c.Message == "addons: 2, objects: 3", "%+v", c)
	a.round("", "")

	a.write("web.yaml", configMap+"web}\ndata: {a: b}\n")
	a.round("web", "")
	assert.NilError(t, os.Remove(filepath.Join(a.dir, "web.yaml")))
	c = a.round("", "web")
	assert.Equal(t, c.Message, "addons: 1, objects: 2")
	assert.NilError(t, os.RemoveAll(filepath.Join(a.dir, "db")))
	assert.Assert(t, a.round("", "db") == nil)
}

func TestAddonFaults(t *testing.T) {
	t.Parallel()
	a := newAddonTest(t)
	a.write("a.yaml", configMap+"a}\n---\nb: [\n")
	a.write("b.yaml", configMap+"b}\n")
	a.write("c.json", configMap+"a, namespace: default}\n---\n"+configMap+"b}\n")
	a.write("kustom/kustomization.yaml", "resources: []\n")
	a.write("B_.yaml", configMap+"other}\n")
	a.cluster.fault["b"] = errors.New("b is refused")
	c := a.round("a keep,b,b-85ae9c46,kustom keep", "")
	assert.Assert(t, c.OK && c.Warning && c.Reason == "NotApplied", "%+v", c)
	for _, want := range []string{
		"a: " + a.dir + "/a.yaml:5: ", "b: b is refused", "c: " + a.dir + "/c.json:5: ConfigMap b is also in " + a.dir + "/b.yaml:1",
		"kustom: " + a.dir + "/kustom/kustomization.yaml: kustomizations are not supported",
	} {
		assert.Check(t, is.Contains(c.Message, want))
	}
	a.round("b", "") // what was refused is tried again, and files with faults are not
	delete(a.cluster.fault, "b")
	a.round("b", "")
	a.write("a.yaml", configMap+"a}\n")
	a.round("a", "")
}

// TestAddonsThatDisappear checks that objects are kept if the directory of their files cannot be read.
func TestAddonsThatDisappear(t *testing.T) {
	t.Parallel()
	a := newAddonTest(t, kubeapi.StoredSet{Name: "old", Source: "/former/old.yaml"})
	a.w.paths = append(a.w.paths, "/does/not/exist")
	a.cluster.sets["unmounted"] = kubeapi.StoredSet{Name: "unmounted", Source: "/does/not/exist/unmounted.yaml"}
	a.write("web.yaml", configMap+"web}\n")
	c := a.round("web", "old") // the addons of a directory that is not configured any more are deleted
	assert.Assert(t, is.Contains(c.Message, "/does/not/exist: no such file or directory"))
	assert.NilError(t, os.Rename(a.dir, a.dir+"-moved"))
	c = a.round("", "")
	assert.Assert(t, is.Contains(c.Message, a.dir+": no such file or directory"))
}

// TestAddonsAreRestored checks that an addon is applied again if another client changes or deletes its objects.
func TestAddonsAreRestored(t *testing.T) {
	t.Parallel()
	a := newAddonTest(t)
	a.write("web.yaml", configMap+"web}\n")
	a.write("other.yaml", configMap+"other}\n")
	a.round("other,web", "")
	var see func(kubeapi.ObjectState)
	for see == nil {
		a.cluster.mu.Lock()
		see = a.cluster.watches["web"]
		a.cluster.mu.Unlock()
	}
	id := kubeapi.ObjectID{Kind: "ConfigMap", Name: "web"}
	see(a.w.running["web"].applied[id]) // as it was applied
	assert.Equal(t, len(a.w.changed), 0)
	see(kubeapi.ObjectState{ObjectID: id})
	<-a.w.changed
	a.round("web", "")
	a.round("", "")
}

func TestAddonNames(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for _, path := range []string{
		"/a/web.yaml", "/a/Web.yaml", "/a/we_b", "/a/a.b", "/a/" + strings.Repeat("x", 60), "/a/" + strings.Repeat("x", 61) + ".yml", "/a/__", "/a/ä.json",
	} {
		name := addonName(path)
		assert.Assert(t, !names[name] && len(name) <= nameLimit && name != "" && strings.Trim(name, "-") == name, "%s: %s", path, name)
		names[name] = true
	}
	assert.Equal(t, addonName("/a/web.yaml"), "web")
}
