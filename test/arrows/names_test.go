package arrows

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/component/catalogue"
)

// sameWords lists the files in which a string literal that equals the name of a component or of one of its programs is allowed because it
// means something else. A path that ends in a slash covers all files below it.
var sameWords = map[string]string{
	"config/":                           "values of the configuration (cri.runtime, cni, networkPolicy)",
	"internal/layout/":                  "directories of the data dir",
	"internal/datadir/place.go":         "directories of the data dir",
	"internal/component/crio/config.go": "the name of a handler in CRI-O's configuration",
	"internal/mountverify/":             "a name of the host's own daemons",
	"pkg/copyup/copyup.go":              "directories of the host",
	"pkg/mountns/processes.go":          "names of the host's own daemons",
}

// TestComponentNames checks that the names of components and of their programs are string literals only in the package that declares them as
// a constant: the component's own package.
func TestComponentNames(t *testing.T) {
	t.Parallel()
	uses := map[string]map[string][]string{} // name -> directory -> places
	for _, c := range catalogue.All() {
		uses[c.Name] = map[string][]string{}
		for _, p := range c.Programs {
			if !strings.Contains(p, "/") { // CNI plugins have common words as names
				uses[p] = map[string][]string{}
			}
		}
	}
	met := map[string]bool{}
	for _, top := range []string{"cmd", "config", "internal", "pkg"} {
		assert.NilError(t, filepath.WalkDir(filepath.Join(root, top), func(file string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
				return err
			}
			file, err = filepath.Rel(root, file)
			for _, lit := range stringLiterals(t, file) {
				if places := uses[lit.value]; places != nil && !excused(file, met) {
					dir := filepath.Dir(file)
					places[dir] = append(places[dir], lit.place)
				}
			}
			return err
		}))
	}
	for name, dirs := range uses {
		own := 0
		for dir, places := range dirs {
			if strings.HasPrefix(dir, "internal/component/") || dir == "internal/runtime" {
				own++
			} else {
				t.Errorf("%q is the name of a component; use the constant of its package: %s", name, strings.Join(places, ", "))
			}
		}
		assert.Check(t, own == 1, "%q is in %d packages of components: %v", name, own, dirs)
	}
	for file := range sameWords {
		assert.Check(t, met[file], "%s needs no exception", file)
	}
}

func excused(file string, met map[string]bool) bool {
	for allowed := range sameWords {
		if file == allowed || strings.HasSuffix(allowed, "/") && strings.HasPrefix(file, allowed) {
			met[allowed] = true
			return true
		}
	}
	return false
}

type literal struct{ value, place string }

// stringLiterals returns the string literals of a file, without imports.
func stringLiterals(t *testing.T, file string) []literal {
	t.Helper()
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, filepath.Join(root, file), nil, 0)
	assert.NilError(t, err)
	var out []literal
	ast.Inspect(parsed, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
			value, err := strconv.Unquote(lit.Value)
			assert.NilError(t, err)
			out = append(out, literal{value, file + ":" + strconv.Itoa(set.Position(lit.Pos()).Line)})
		}
		_, isImport := n.(*ast.ImportSpec)
		return !isImport
	})
	return out
}
