package arrows

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"
)

// pagesWithTests are the pages whose tables name the tests of each row, in the column "Test".
var pagesWithTests = []string{"cases.md", "failure-modes.md"}

// TestDocumentedTestsExist checks that every test that a page names exists. A cell has the directory of a package, followed by its tests:
// `pkg/copyup` `TestDriver`, `TestPlanHosts/SUBTEST`. Without a directory, the test can be in any package. The name of a subtest must be a
// string of its package.
func TestDocumentedTestsExist(t *testing.T) {
	t.Parallel()
	tree := testTree(t, root)
	for _, page := range pagesWithTests {
		text, err := os.ReadFile(filepath.Join(root, "docs", page))
		assert.NilError(t, err)
		faults, rows := tree.check(string(text))
		assert.Assert(t, rows > 0, "docs/%s has no table with a column Test", page)
		for _, fault := range faults {
			t.Errorf("docs/%s: %s", page, fault)
		}
	}
}

// testPackage has the tests of a directory and the strings in their files.
type testPackage struct {
	tests   map[string]bool
	strings map[string]bool
}

// testPackages are the packages with tests, by their directory.
type testPackages map[string]testPackage

// testTree parses the tests below root.
func testTree(t *testing.T, root string) testPackages {
	t.Helper()
	tree := testPackages{}
	for _, dir := range []string{"cmd", "components", "config", "examples", "internal", "pkg", "test"} {
		assert.NilError(t, filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			rel, err := filepath.Rel(root, filepath.Dir(path))
			tree.add(rel, file)
			return err
		}))
	}
	return tree
}

func (p testPackages) add(dir string, file *ast.File) {
	if _, ok := p[dir]; !ok {
		p[dir] = testPackage{map[string]bool{}, map[string]bool{}}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Recv == nil && strings.HasPrefix(n.Name.Name, "Test") {
				p[dir].tests[n.Name.Name] = true
			}
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
				p[dir].strings[text] = true
			}
		}
		return true
	})
}

// check returns the faults of all rows of tables with a column Test, and the number of those rows.
func (p testPackages) check(page string) (faults []string, rows int) {
	column := -1
	for line := range strings.Lines(page) {
		line, isRow := strings.CutPrefix(strings.TrimSpace(line), "| ")
		if !isRow {
			if !strings.HasPrefix(line, "|") { // such as |---|, which separates the header
				column = -1
			}
			continue
		}
		cells := strings.Split(strings.TrimSuffix(line, " |"), " | ")
		if i := slices.Index(cells, "Test"); i >= 0 {
			column = i
			continue
		}
		if column < 0 {
			continue
		}
		rows++
		row, _, _ := strings.Cut(cells[0], ": ")
		if column >= len(cells) {
			faults = append(faults, row+": the column Test is missing")
			continue
		}
		for _, err := range p.checkCell(cells[column]) {
			faults = append(faults, row+": "+err.Error())
		}
	}
	return faults, rows
}

var inBackticks = regexp.MustCompile("`([^`]+)`")

// checkCell checks the tests in a cell, which has at least one.
func (p testPackages) checkCell(cell string) (faults []error) {
	dir, tests := "", 0
	for _, match := range inBackticks.FindAllStringSubmatch(cell, -1) {
		if !strings.HasPrefix(match[1], "Test") {
			dir = match[1]
			if _, ok := p[dir]; !ok {
				faults = append(faults, fmt.Errorf("%s is not a directory with tests", dir))
			}
			continue
		}
		tests++
		if err := p.find(dir, match[1]); err != nil {
			faults = append(faults, err)
		}
	}
	if tests == 0 {
		faults = append(faults, errors.New("no test is named"))
	}
	return faults
}

// find returns an error unless a test exists in dir, or in any directory if dir is "".
func (p testPackages) find(dir, name string) error {
	function, subtest, _ := strings.Cut(name, "/")
	place := dir
	if dir == "" {
		place = "any package"
	}
	err := fmt.Errorf("there is no function %s in %s", function, place)
	for d, in := range p {
		if dir != "" && d != dir || !in.tests[function] {
			continue
		}
		if in.has(subtest) {
			return nil
		}
		err = fmt.Errorf("%s has no subtest %q", function, subtest)
	}
	return err
}

// has reports whether a subtest, or each of several levels of subtests, is a string of the package.
func (p testPackage) has(subtest string) bool {
	if subtest == "" || p.strings[subtest] {
		return true
	}
	for part := range strings.SplitSeq(subtest, "/") {
		if !p.strings[part] {
			return false
		}
	}
	return true
}

// TestMissingTestsAreFound checks the check.
func TestMissingTestsAreFound(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "a_test.go", "package a\nfunc TestOne(){ run(\"a/b\", \"c\", `d e`) }\nfunc (x) TestMethod(){}", 0)
	assert.NilError(t, err)
	tree := testPackages{}
	tree.add("pkg/a", file)
	faults, rows := tree.check(strings.Join([]string{
		"| Case | Test |", "|---|---|", "| good | `pkg/a` `TestOne`, `TestOne/a/b`, `TestOne/c/d e` |", "| any package | `TestOne/c` |", "",
		"| Case | Test | Why |", "|---|---|---|", "| renamed | `pkg/a` `TestTwo` | x |", "| a method | `TestMethod` | x |", "| a subtest | `TestOne/d` | x |",
		"| moved | `pkg/b` `TestOne` | x |", "| none | soon | x |", "| short |", "", "| Case | Reason |", "|---|---|", "| another table | `TestNone` |",
	}, "\n"))
	assert.Equal(t, rows, 8)
	assert.Check(t, cmp.DeepEqual(faults, []string{
		"renamed: there is no function TestTwo in pkg/a", "a method: there is no function TestMethod in any package", `a subtest: TestOne has no subtest "d"`,
		"moved: pkg/b is not a directory with tests", "moved: there is no function TestOne in pkg/b", "none: no test is named", "short: the column Test is missing",
	}))
}
