package arrows

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
)

const root = "../.."

// goMod is the part of the output of `go mod edit -json` that is used.
type goMod struct {
	Require []struct {
		Path     string
		Indirect bool
	}
	Tool []struct{ Path string }
}

// direct returns the direct requirements of the go.mod in dir, and the modules of its tools.
func direct(t *testing.T, dir string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "mod", "edit", "-json")
	cmd.Dir = dir
	out, err := cmd.Output()
	assert.NilError(t, err, dir)
	var m goMod
	assert.NilError(t, json.Unmarshal(out, &m))
	var modules []string
	for _, r := range m.Require {
		if !r.Indirect {
			modules = append(modules, r.Path)
		}
	}
	for _, tool := range m.Tool {
		of := ""
		for _, r := range m.Require {
			if (tool.Path == r.Path || strings.HasPrefix(tool.Path, r.Path+"/")) && len(r.Path) > len(of) {
				of = r.Path
			}
		}
		assert.Assert(t, of != "", "%s: no module of tool %s", dir, tool.Path)
		modules = append(modules, of)
	}
	slices.Sort(modules)
	return slices.Compact(modules)
}

// table returns the rows of the tables below a heading of docs/dependencies.md, without the header rows.
func table(t *testing.T, heading string) [][]string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(root, "docs", "dependencies.md"))
	assert.NilError(t, err)
	_, text, ok := strings.Cut(string(page), "\n## "+heading+"\n")
	assert.Assert(t, ok, "no heading %s", heading)
	text, _, _ = strings.Cut(text, "\n## ")
	var rows [][]string
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") {
			continue
		}
		var row []string
		for _, cell := range strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ") {
			row = append(row, strings.TrimSpace(cell))
		}
		rows = append(rows, row)
	}
	assert.Assert(t, len(rows) > 1, heading)
	return rows[1:]
}

var quoted = regexp.MustCompile("`([^`]+)`")

func names(cell string) []string {
	var all []string
	for _, m := range quoted.FindAllStringSubmatch(cell, -1) {
		all = append(all, m[1])
	}
	return all
}

// importers maps each module to the packages that import it, without test packages.
func importers(t *testing.T, modules []string) map[string][]string {
	t.Helper()
	by := map[string][]string{}
	for _, p := range list(t) {
		if floor, _, _ := floorOf(p.path); floor == testFloor || slices.Contains(testsOnly, p.path) {
			continue
		}
		for _, m := range modules {
			if slices.ContainsFunc(p.imports, func(to string) bool { return to == m || strings.HasPrefix(to, m+"/") }) {
				by[m] = append(by[m], p.path)
			}
		}
	}
	return by
}

// TestDependenciesPage compares docs/dependencies.md with go.mod and the imports.
func TestDependenciesPage(t *testing.T) {
	t.Parallel()
	modules := direct(t, root)
	by := importers(t, modules)
	var listed []string
	for _, row := range table(t, "The module") {
		assert.Equal(t, len(row), 3, "%v", row)
		module := names(row[0])[0]
		listed = append(listed, module)
		importing := names(row[1])
		slices.Sort(importing)
		slices.Sort(by[module])
		assert.Check(t, is.DeepEqual(importing, by[module]), "packages that import %s", module)
		assert.Check(t, len(by[module]) > 0 || row[1] == "tests", "only tests import %s", module)
	}
	slices.Sort(listed)
	assert.Check(t, is.DeepEqual(listed, modules))
}

func TestDependenciesPageListsTools(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"tools", "test/bench/rootlesskit", "test/conformance", "test/conformance/suite"} {
		heading := dir
		if dir == "tools" {
			heading += "/"
		}
		var listed []string
		for _, row := range table(t, heading) {
			listed = append(listed, names(row[0])...)
		}
		slices.Sort(listed)
		assert.Check(t, is.DeepEqual(listed, direct(t, filepath.Join(root, dir))), heading)
	}
}

// TestSuiteHasTheNodesKubernetesVersion checks that the conformance suite is of the Kubernetes release that a node runs.
func TestSuiteHasTheNodesKubernetesVersion(t *testing.T) {
	t.Parallel()
	assert.Equal(t, version(t, "test/conformance/suite", "k8s.io/kubernetes"), version(t, "components/kubernetes", "k8s.io/kubernetes"))
}

// version returns the version of a module in the build of the module in dir.
func version(t *testing.T, dir, module string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Version}}", module)
	cmd.Dir = filepath.Join(root, dir)
	out, err := cmd.Output()
	assert.NilError(t, err)
	return string(out)
}

// TestPeerHasSameVersion checks that the benchmarks compare with the version of RootlessKit that rootlessnode uses.
func TestPeerHasSameVersion(t *testing.T) {
	t.Parallel()
	const module = "github.com/rootless-containers/rootlesskit/v3"
	assert.Equal(t, version(t, "test/bench/rootlesskit", module), version(t, ".", module))
}

func TestDependenciesPageListsComponents(t *testing.T) {
	t.Parallel()
	listed := map[string][]string{}
	component := ""
	for _, row := range table(t, "components/") {
		if first := names(row[0]); len(first) > 0 {
			component = first[0]
		}
		listed[component] = append(listed[component], names(row[1])...)
	}
	files, err := filepath.Glob(filepath.Join(root, "components", "*", "go.mod"))
	assert.NilError(t, err)
	for _, file := range files {
		dir := filepath.Dir(file)
		name := filepath.Base(dir)
		slices.Sort(listed[name])
		assert.Check(t, is.DeepEqual(listed[name], direct(t, dir)), "components/%s", name)
		delete(listed, name)
	}
	assert.Check(t, is.Len(listed, 0), "no such component")
}
