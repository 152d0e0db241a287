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

// goMod is the part of `go mod edit -json` that is of interest.
type goMod struct {
	Require []struct {
		Path     string
		Indirect bool
	}
	Tool []struct{ Path string }
}

// direct are the modules that the go.mod in dir is about: what it requires for itself, and those of its tools.
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

// table returns the rows of the tables below a heading of docs/dependencies.md, without their heads.
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

// importers maps each module to the packages that import it, those of tests left out.
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

// TestDependenciesPage holds docs/dependencies.md against go.mod and the imports.
func TestDependenciesPage(t *testing.T) {
	t.Parallel()
	modules := direct(t, root)
	by := importers(t, modules)
	var told []string
	for _, row := range table(t, "The module") {
		assert.Equal(t, len(row), 3, "%v", row)
		module := names(row[0])[0]
		told = append(told, module)
		importing := names(row[1])
		slices.Sort(importing)
		slices.Sort(by[module])
		assert.Check(t, is.DeepEqual(importing, by[module]), "who imports %s", module)
		assert.Check(t, len(by[module]) > 0 || row[1] == "tests", "%s is imported by tests at the most", module)
	}
	slices.Sort(told)
	assert.Check(t, is.DeepEqual(told, modules))
}

func TestDependenciesPageTellsOfTools(t *testing.T) {
	t.Parallel()
	for _, dir := range []string{"tools", "test/bench/rootlesskit", "test/conformance", "test/conformance/suite"} {
		heading := dir
		if dir == "tools" {
			heading += "/"
		}
		var told []string
		for _, row := range table(t, heading) {
			told = append(told, names(row[0])...)
		}
		slices.Sort(told)
		assert.Check(t, is.DeepEqual(told, direct(t, filepath.Join(root, dir))), heading)
	}
}

// TestSuiteIsOfOurKubernetes: a node is judged by the suite of the release that it runs.
func TestSuiteIsOfOurKubernetes(t *testing.T) {
	t.Parallel()
	assert.Equal(t, version(t, "test/conformance/suite", "k8s.io/kubernetes"), version(t, "components/kubernetes", "k8s.io/kubernetes"))
}

// version is that of a module in the build of the module in dir.
func version(t *testing.T, dir, module string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Version}}", module)
	cmd.Dir = filepath.Join(root, dir)
	out, err := cmd.Output()
	assert.NilError(t, err)
	return string(out)
}

// TestPeerHasOurVersion: the benchmarks compare with the RootlessKit that we are built from.
func TestPeerHasOurVersion(t *testing.T) {
	t.Parallel()
	const module = "github.com/rootless-containers/rootlesskit/v3"
	assert.Equal(t, version(t, "test/bench/rootlesskit", module), version(t, ".", module))
}

func TestDependenciesPageTellsOfComponents(t *testing.T) {
	t.Parallel()
	told := map[string][]string{}
	component := ""
	for _, row := range table(t, "components/") {
		if first := names(row[0]); len(first) > 0 {
			component = first[0]
		}
		told[component] = append(told[component], names(row[1])...)
	}
	files, err := filepath.Glob(filepath.Join(root, "components", "*", "go.mod"))
	assert.NilError(t, err)
	for _, file := range files {
		dir := filepath.Dir(file)
		name := filepath.Base(dir)
		slices.Sort(told[name])
		assert.Check(t, is.DeepEqual(told[name], direct(t, dir)), "components/%s", name)
		delete(told, name)
	}
	assert.Check(t, is.Len(told, 0), "no such component")
}
