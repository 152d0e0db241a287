package arrows

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/layout"
)

// layoutNames returns the exported constants of internal/layout, with the values of string constants, and its exported functions and methods
// that return a string.
func layoutNames(t *testing.T) (constants map[string]string, functions []string) {
	t.Helper()
	constants = map[string]string{}
	files, err := filepath.Glob(filepath.Join(root, "internal", "layout", "*.go"))
	assert.NilError(t, err)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		assert.NilError(t, err)
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.GenDecl:
				if d.Tok == token.CONST {
					addConstants(t, constants, d)
				}
			case *ast.FuncDecl:
				if name := namingFunction(d); name != "" {
					functions = append(functions, name)
				}
			}
		}
	}
	assert.Assert(t, len(constants) > 0 && len(functions) > 0)
	return constants, functions
}

func addConstants(t *testing.T, constants map[string]string, d *ast.GenDecl) {
	t.Helper()
	for _, s := range d.Specs {
		spec := s.(*ast.ValueSpec)
		for i, name := range spec.Names {
			if !name.IsExported() {
				continue
			}
			text := ""
			if lit, ok := spec.Values[i].(*ast.BasicLit); ok && lit.Kind == token.STRING {
				unquoted, err := strconv.Unquote(lit.Value)
				assert.NilError(t, err)
				text = unquoted
			}
			constants[name.Name] = text
		}
	}
}

// namingFunction returns the name of d in the page, Type.Method or Function, or "" unless d is exported and returns one string.
func namingFunction(d *ast.FuncDecl) string {
	if !d.Name.IsExported() || d.Type.Results == nil || len(d.Type.Results.List) != 1 {
		return ""
	}
	if result, ok := d.Type.Results.List[0].Type.(*ast.Ident); !ok || result.Name != "string" {
		return ""
	}
	if d.Recv == nil {
		return d.Name.Name
	}
	return d.Recv.List[0].Type.(*ast.Ident).Name + "." + d.Name.Name
}

// paths calls every method of v without arguments that returns a string.
func paths(v any) map[string]string {
	all := map[string]string{}
	value := reflect.ValueOf(v)
	for i := range value.NumMethod() {
		if f, ok := value.Method(i).Interface().(func() string); ok {
			all[value.Type().Name()+"."+value.Type().Method(i).Name] = f()
		}
	}
	return all
}

// TestLayoutPage checks that docs/layout.md lists the names of internal/layout, each in one row with its value.
func TestLayoutPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join(root, "docs", "layout.md"))
	assert.NilError(t, err)
	constants, functions := layoutNames(t)
	values := constants
	for _, named := range []map[string]string{paths(layout.Runtime{Dir: "RUN"}), paths(layout.Data{Dir: "DATA"})} {
		for name, path := range named {
			values[name] = path
		}
	}
	values["Data.Log"] = layout.Data{Dir: "DATA"}.Log("COMPONENT")
	values["DefaultDataDir"] = layout.DefaultDataDir("$XDG_DATA_HOME", "NAME")
	values["NewRuntime"] = layout.NewRuntime("$XDG_RUNTIME_DIR", "NAME").Dir
	values["Cgroup"] = layout.Cgroup("NAME")
	for _, name := range functions {
		values[name] += ""
	}
	for name, value := range values {
		found := false
		for line := range strings.Lines(string(page)) {
			found = found || strings.Contains(line, "`"+name+"`") && (value == "" || strings.Contains(line, "`"+value+"`"))
		}
		assert.Check(t, found, "docs/layout.md has no line with %s and %q", name, value)
	}
	for _, b := range layout.NewData("DATA").Binds() {
		assert.Check(t, strings.Contains(string(page), "| `"+b.Host+"` | `"+b.Inside+"` |"), "docs/layout.md has no row for %+v", b)
	}
}
