package arrows

import (
	"fmt"
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
	"gotest.tools/v3/golden"

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

// TestLayoutTables compares the tables of docs/layout.md that are generated from internal/layout. It writes them with -update.
func TestLayoutTables(t *testing.T) { // not parallel, because it may write the page
	file := filepath.Join(root, "docs", "layout.md")
	page, err := os.ReadFile(file)
	assert.NilError(t, err)
	want := string(page)
	for name, rows := range map[string][]layout.Handover{
		"files": layout.Files(layout.Runtime{Dir: "RUN"}, layout.Data{Dir: "DATA"}), "keys": layout.PrivateKeys(),
	} {
		head, rest, found := strings.Cut(want, ": "+name+" -->\n")
		_, tail, ended := strings.Cut(rest, "<!-- end -->")
		assert.Assert(t, found && ended, "docs/layout.md has no table %s", name)
		table := "| Value | Name | Content | Written by | Read by | Lifetime |\n|---|---|---|---|---|---|\n"
		for _, r := range rows {
			table += fmt.Sprintf("| `%s` | `%s` | %s | %s | %s | %s |\n", r.Value, r.Name, r.Content, r.Writer, r.Readers, r.Lifetime)
		}
		want = head + ": " + name + " -->\n" + table + "<!-- end -->" + tail
	}
	if golden.FlagUpdate() {
		assert.NilError(t, os.WriteFile(file, []byte(want), 0o644))
		return
	}
	assert.Equal(t, string(page), want, "a table is stale; run: go test ./test/arrows -run TestLayoutTables -update")
}

// TestLayoutTablesComplete checks that the tables list each private key.
func TestLayoutTablesComplete(t *testing.T) {
	t.Parallel()
	constants, _ := layoutNames(t)
	want, got := map[string]string{}, map[string]string{}
	for name, value := range constants {
		if strings.HasPrefix(value, "_") {
			want[name] = value
		}
	}
	for _, h := range layout.PrivateKeys() {
		got[h.Name] = h.Value
	}
	assert.DeepEqual(t, got, want)
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
