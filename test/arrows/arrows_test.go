// Package arrows holds the test that keeps the packages' imports as docs/architecture.md draws them.
package arrows

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
)

const module = "github.com/rootlessnode/rootlessnode/"

// floors: a package imports only packages of lower floors. A prefix that ends in a slash covers everything below it.
var floors = []struct {
	floor    int
	packages []string
	why      string
}{
	{7, []string{"test/", "examples/"}, "nothing imports tests and examples"},
	{6, []string{"cmd/rootlessnode", "cmd/rootlessnode-runc"}, "programs are on top"},
	{5, []string{"pkg/node"}, "the embedder's door stands on both roles"},
	{4, []string{"pkg/parent", "pkg/child"}, "the roles never import each other: they meet through pkg/layout and the config"},
	{3, []string{"pkg/preflight", "pkg/component", "pkg/component/", "pkg/hostsetup"}, "checks and components use mechanisms, roles use them"},
	{2, []string{"pkg/supervisor", "pkg/cgroupv2", "pkg/copyup", "pkg/portfwd", "pkg/mountns", "pkg/kubeapi", "pkg/nodeexec"},
		"mechanisms are strangers to one another"},
	{1, []string{"config", "pkg/status", "pkg/status/", "pkg/errdefs", "pkg/layout"}, "words and data that all share"},
	{0, []string{"pkg/internal/"}, "helpers without knowledge of a node"},
}

// family lists packages that may import one another though they are on one floor.
var family = [][]string{
	{"config", "pkg/layout", "pkg/errdefs", "pkg/status", "pkg/status/"},
	{"pkg/component", "pkg/component/"},
	{"pkg/preflight", "pkg/hostsetup"},
}

// guarded: modules that only some packages may import, and why.
var guarded = []struct {
	path string
	only []string
	why  string
}{
	{"github.com/rootless-containers/rootlesskit/", []string{"pkg/parent", "pkg/child", "pkg/copyup", "pkg/portfwd"},
		"its traps are handled in few places"},
	{"github.com/containerd/cgroups/", []string{"pkg/cgroupv2"}, "one package speaks to the cgroup file system"},
	{"github.com/opencontainers/runc/", []string{"pkg/internal/userns"}, "the swap to moby/sys/userns stays a one-line change"},
	{"k8s.io/client-go", []string{"pkg/kubeapi"}, "the API calls that we need are behind small interfaces"},
	{"github.com/spf13/cobra", []string{"cmd/rootlessnode"}, "a library must not bring a command line along"},
}

func floorOf(pkg string) (int, string, bool) {
	for _, f := range floors {
		for _, p := range f.packages {
			if pkg == p || strings.HasSuffix(p, "/") && strings.HasPrefix(pkg, p) {
				return f.floor, f.why, true
			}
		}
	}
	return 0, "", false
}

func related(a, b string) bool {
	in := func(pkg string, list []string) bool {
		return slices.ContainsFunc(list, func(p string) bool {
			return pkg == p || strings.HasSuffix(p, "/") && strings.HasPrefix(pkg, p)
		})
	}
	return slices.ContainsFunc(family, func(list []string) bool { return in(a, list) && in(b, list) })
}

func TestArrows(t *testing.T) {
	t.Parallel()
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, module+"...").Output()
	assert.NilError(t, err)
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		from := strings.TrimPrefix(fields[0], module)
		floor, _, known := floorOf(from)
		if !known {
			t.Errorf("%s stands on no floor: add it to this test and to docs/architecture.md", from)
			continue
		}
		for _, to := range fields[1:] {
			checkImport(t, from, floor, to)
		}
	}
}

func checkImport(t *testing.T, from string, floor int, to string) {
	t.Helper()
	for _, g := range guarded {
		if strings.HasPrefix(to, g.path) && !slices.Contains(g.only, from) && floor < 7 {
			t.Errorf("%s imports %s, which only %s may: %s", from, to, strings.Join(g.only, ", "), g.why)
		}
	}
	own, inside := strings.CutPrefix(to, module)
	if !inside {
		return
	}
	below, why, _ := floorOf(own)
	if below < floor || related(from, own) || floor == 0 && below == 0 {
		return
	}
	t.Errorf("%s (floor %d) imports %s (floor %d): %s", from, floor, own, below, why)
}
