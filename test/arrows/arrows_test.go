// Package arrows tests that the imports between packages follow docs/architecture.md, and that other pages match the code.
package arrows

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
)

const module = "github.com/rootlessnode/rootlessnode/"

// testFloor is the floor of tests and examples, which may import any package.
const testFloor = 8

// testsOnly are the packages that only tests may import.
var testsOnly = []string{"internal/testutil", "internal/component/internal/fixture"}

// floors assigns packages to floors. A package may import only packages of lower floors. A prefix that ends in a slash covers all packages
// below it.
var floors = []struct {
	floor    int
	packages []string
	why      string
}{
	{testFloor, []string{"test/", "examples/"}, "tests and examples are not imported"},
	{7, []string{"cmd/rootlessnode", "cmd/rootlessnode-runc", "cmd/rootlessnode-cri"}, "programs are the top floor"},
	{6, []string{"pkg/node"}, "the API for embedders uses both roles"},
	{5, []string{"pkg/parent", "pkg/child"}, "the roles do not import each other: they communicate through internal/layout and the config"},
	{4, []string{"internal/noderole", "internal/bugreport"}, "the child starts the node role, and a report collects from all packages below"},
	{3, []string{"internal/preflight", "internal/component", "internal/component/", "internal/runtime", "internal/hostsetup", "internal/mountverify", "internal/membership"}, "checks and components use mechanisms, roles use them"},
	{2, []string{"internal/supervisor", "pkg/cgroupv2", "pkg/copyup", "pkg/portfwd", "pkg/portdriver", "internal/kubeapi", "internal/nodeexec", "internal/hostexec", "internal/hostport",
		"internal/userunit", "internal/kubeconfig", "internal/registryauth", "pkg/mountns", "internal/dropin", "internal/mountview", "internal/datadir", "internal/trial"},
		"mechanisms do not import one another"},
	{1, []string{"config", "pkg/status", "internal/localsock", "pkg/errdefs", "internal/layout", "internal/filewatch"}, "shared types and data"},
	{0, []string{"docs", "internal/atomicfile", "internal/deadchild", "internal/descriptors", "internal/hostinfo", "internal/journal", "internal/login", "internal/criclient", "internal/criclient/", "internal/proc", "internal/promtext", "internal/proxyenv", "internal/redact", "internal/relay", "internal/specfilter", "internal/terminal", "internal/testutil", "internal/userns"}, "helpers that do not depend on a node"},
}

// family lists packages of the same floor that may import one another.
var family = [][]string{
	{"config", "internal/layout", "pkg/errdefs", "pkg/status", "internal/localsock", "internal/filewatch"},
	{"internal/component", "internal/component/", "internal/runtime", "internal/preflight"},
	{"internal/preflight", "internal/hostsetup"},
	{"pkg/portfwd", "pkg/portdriver"},
	{"internal/supervisor", "pkg/cgroupv2"},
	{"internal/nodeexec", "pkg/cgroupv2"},
}

// guarded lists modules that only some packages may import, with the reason.
var guarded = []struct {
	path string
	only []string
	why  string
}{
	{"github.com/rootless-containers/rootlesskit/", []string{"pkg/parent", "pkg/child", "pkg/copyup", "internal/datadir", "pkg/portdriver", "pkg/portfwd"},
		"its pitfalls are handled in few places"},
	{"github.com/containerd/cgroups/", []string{"pkg/cgroupv2"}, "only one package uses the cgroup file system"},
	{"github.com/opencontainers/runc/", []string{"internal/userns"}, "the swap to moby/sys/userns stays a one-line change"},
	{"k8s.io/client-go", []string{"internal/kubeapi"}, "the API calls are behind small interfaces"},
	{module + "internal/noderole", []string{"pkg/child", "pkg/node"}, "only the child starts the node role"},
	{"google.golang.org/grpc", []string{"internal/criclient/cristop", "internal/criclient/imagestore"}, "programs that link it start slower and are larger"},
	{"k8s.io/cri-api", []string{"internal/criclient/cristop", "cmd/rootlessnode-cri"}, "it links gRPC"},
	{"github.com/containerd/containerd/", []string{"internal/criclient/imagestore"}, "only the helper program uses containerd's API"},
	{"github.com/spf13/cobra", []string{"cmd/rootlessnode"}, "a library must not depend on a command line framework"},
}

// matches reports whether pkg is name, or is below name if name ends in a slash.
func matches(pkg, name string) bool {
	return pkg == name || strings.HasSuffix(name, "/") && strings.HasPrefix(pkg, name)
}

func floorOf(pkg string) (int, string, bool) {
	for _, f := range floors {
		for _, name := range f.packages {
			if matches(pkg, name) {
				return f.floor, f.why, true
			}
		}
	}
	return 0, "", false
}

func related(a, b string) bool {
	in := func(pkg string, list []string) bool {
		return slices.ContainsFunc(list, func(name string) bool { return matches(pkg, name) })
	}
	return slices.ContainsFunc(family, func(list []string) bool { return in(a, list) && in(b, list) })
}

// pkgImports has the imports of a package of this module, as go list reports them. Paths in this module are relative to it.
type pkgImports struct {
	path           string
	imports, tests []string
}

func list(t *testing.T) []pkgImports {
	t.Helper()
	const format = `{{.ImportPath}};{{join .Imports " "}};{{join .TestImports " "}} {{join .XTestImports " "}}`
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", format, module+"...").Output()
	assert.NilError(t, err)
	var all []pkgImports
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimSpace(line), ";")
		assert.Equal(t, len(f), 3, line)
		all = append(all, pkgImports{strings.TrimPrefix(f[0], module), strings.Fields(f[1]), strings.Fields(f[2])})
	}
	return all
}

func TestArrows(t *testing.T) {
	t.Parallel()
	met := map[string]bool{}
	for _, p := range list(t) {
		floor, _, known := floorOf(p.path)
		if !known {
			t.Errorf("%s has no floor: add it to this test and to docs/architecture.md", p.path)
			continue
		}
		for _, to := range p.imports {
			checkImport(t, p.path, floor, to)
			checkGuarded(t, p.path, floor, to)
			if own := strings.TrimPrefix(to, module); slices.Contains(testsOnly, own) && floor < testFloor {
				t.Errorf("%s imports %s, which only tests may import", p.path, own)
			}
		}
		for _, to := range p.tests {
			if strings.TrimPrefix(to, module) != p.path {
				checkImport(t, p.path, floor, to)
			}
		}
		for _, f := range floors {
			for _, name := range f.packages {
				met[name] = met[name] || matches(p.path, name)
			}
		}
	}
	for name, found := range met {
		assert.Check(t, found, "%s is in this test, but there is no such package", name)
	}
}

// TestArchitecturePageDrawsTheFloors checks that the drawing in docs/architecture.md has the same packages as floors.
func TestArchitecturePageDrawsTheFloors(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "architecture.md"))
	assert.NilError(t, err)
	drawn := map[string]int{}
	row := regexp.MustCompile(`(?m)^([0-8])  (.+)$`)
	for _, m := range row.FindAllStringSubmatch(string(page), -1) {
		for _, word := range strings.Fields(m[2]) {
			if _, _, known := floorOf(strings.TrimSuffix(word, "*")); known {
				drawn[word] = int(m[1][0] - '0')
			}
		}
	}
	for _, f := range floors {
		for _, name := range f.packages {
			if strings.HasSuffix(name, "/") {
				name += "*"
			}
			floor, there := drawn[name]
			assert.Check(t, there && floor == f.floor, "docs/architecture.md does not draw %s on floor %d", name, f.floor)
			delete(drawn, name)
		}
	}
	assert.Check(t, len(drawn) == 0, "docs/architecture.md has packages that are not in this test: %v", drawn)
}

// checkImport checks that an import between packages of this module is to a lower floor.
func checkImport(t *testing.T, from string, floor int, to string) {
	t.Helper()
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

// checkGuarded checks that a guarded module is imported only by the packages that may. Tests may import all modules.
func checkGuarded(t *testing.T, from string, floor int, to string) {
	t.Helper()
	for _, g := range guarded {
		if strings.HasPrefix(to, g.path) && !slices.Contains(g.only, from) && floor < testFloor {
			t.Errorf("%s imports %s, which only %s may: %s", from, to, strings.Join(g.only, ", "), g.why)
		}
	}
}
