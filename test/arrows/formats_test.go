package arrows

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
)

// listed is a part of the output of `go list -json`.
type listed struct {
	ImportPath, Dir, Export string
	GoFiles                 []string
	Standard                bool
	Module                  *struct{ Main bool }
}

// TestMessagesHaveNoStructs checks that no message is formatted from a value whose text is that of its fields ("&{…}"), because users
// cannot read it, and because it may contain secrets. A value with a method Error or String is printed with it.
func TestMessagesHaveNoStructs(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Dir,Export,GoFiles,Standard,Module",
		"./cmd/...", "./pkg/...", "./internal/...", "./config")
	cmd.Dir = root
	out, err := cmd.Output()
	assert.NilError(t, err)
	exports := map[string]string{}
	var own []listed
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		assert.NilError(t, err)
		exports[p.ImportPath] = p.Export
		if p.Module != nil && p.Module.Main {
			own = append(own, p)
		}
	}
	assert.Assert(t, len(own) > 40, "%d packages", len(own))
	fset := token.NewFileSet()
	compiled := importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) { return os.Open(exports[path]) })
	for _, p := range own {
		for _, fault := range structsIn(t, fset, compiled, p) {
			t.Error(fault)
		}
	}
}

// structsIn returns the faults in the messages of a package.
func structsIn(t *testing.T, fset *token.FileSet, compiled types.Importer, p listed) []string {
	t.Helper()
	var files []*ast.File
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(fset, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
		assert.NilError(t, err)
		files = append(files, f)
	}
	return structsInFiles(t, fset, compiled, p.ImportPath, files...)
}

func structsInFiles(t *testing.T, fset *token.FileSet, compiled types.Importer, path string, files ...*ast.File) []string {
	t.Helper()
	m := messages{info: &types.Info{Types: map[ast.Expr]types.TypeAndValue{}}}
	_, err := (&types.Config{Importer: compiled}).Check(path, fset, files, m.info)
	assert.NilError(t, err)
	var faults []string
	for _, f := range files {
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			for _, arg := range m.formatted(call) {
				if typ := m.info.TypeOf(arg); printsFields(typ) {
					faults = append(faults, fmt.Sprintf("%s: a message contains the fields of a %s", fset.Position(arg.Pos()), typ))
				}
			}
			return true
		})
	}
	return faults
}

// TestStructsAreFound checks which calls TestMessagesHaveNoStructs reports.
func TestStructsAreFound(t *testing.T) {
	t.Parallel()
	const source = `package p
type plain struct{ n int }
type text struct{ n int }
func (text) String() string { return "" }
func errorf(format string, args ...any) {}
type logger struct{}
func (logger) WithField(key string, value any) {}
func log(args ...any) {}
func closeAll(closers ...interface{ Close() }) {}
func (plain) Close() {}
func _(p plain, x text, list []plain, byName map[string]*plain, e error, args []any) {
	errorf("%d %v", 1, e)
	errorf("%v %s %q", x, &x, []text{x})
	errorf("%T %%v", p)
	closeAll(p)
	errorf("no constant" + e.Error(), p)
	errorf("%v", args...)
	log(e, x)
	errorf("%s %v", e, p)     // a fault
	errorf("%+v", &p)         // a fault
	errorf("%d: %v", 1, list) // a fault
	errorf("%s", byName)      // a fault
	log("x", p)               // a fault
	var l logger
	l.WithField("x", x)
	l.WithField("x", p) // a fault
}`
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "p.go", source, parser.ParseComments)
	assert.NilError(t, err)
	var want, got []int
	for _, c := range f.Comments {
		want = append(want, fset.Position(c.Pos()).Line)
	}
	for _, fault := range structsInFiles(t, fset, nil, "p", f) {
		var line int
		_, err := fmt.Sscanf(fault, "p.go:%d:", &line)
		assert.NilError(t, err)
		got = append(got, line)
	}
	assert.DeepEqual(t, got, want)
}

type messages struct{ info *types.Info }

// formatted returns the arguments of a call that become text: those for %v, %s and %q if the function has a format, otherwise all
// arguments for its parameters ...any. It returns none for functions that only pass their arguments on.
func (m messages) formatted(call *ast.CallExpr) []ast.Expr {
	if f, ok := call.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "WithField" && len(call.Args) == 2 { // logrus
		return call.Args[1:]
	}
	signature, ok := m.info.TypeOf(call.Fun).(*types.Signature)
	if !ok || !signature.Variadic() || call.Ellipsis.IsValid() {
		return nil
	}
	fixed := signature.Params().Len() - 1
	rest, ok := signature.Params().At(fixed).Type().(*types.Slice)
	if !ok || !types.Identical(rest.Elem().Underlying(), types.NewInterfaceType(nil, nil)) || len(call.Args) <= fixed {
		return nil
	}
	args := call.Args[fixed:]
	if fixed == 0 {
		return args
	}
	format := m.info.Types[call.Args[fixed-1]].Value
	if format == nil || format.Kind() != constant.String {
		return nil
	}
	return textArguments(constant.StringVal(format), args)
}

// textArguments returns the arguments for the verbs %v, %s and %q in a format. Formats with explicit indexes or a width from an argument
// have only simple arguments here: all are returned.
func textArguments(format string, args []ast.Expr) []ast.Expr {
	if strings.ContainsAny(format, "[*") && (strings.Contains(format, "%[") || strings.Contains(format, "*")) {
		return args
	}
	var found []ast.Expr
	for i := 0; i < len(format) && len(args) > 0; i++ {
		if format[i] != '%' {
			continue
		}
		for i++; i < len(format) && strings.IndexByte("+-# 0123456789.", format[i]) >= 0; i++ {
		}
		switch {
		case i == len(format) || format[i] == '%':
			continue
		case strings.IndexByte("vsq", format[i]) >= 0:
			found = append(found, args[0])
		}
		args = args[1:]
	}
	return found
}

// printsFields reports whether fmt prints a value of the type with the fields of a struct.
func printsFields(t types.Type) bool {
	for _, name := range []string{"Error", "String"} {
		if obj, _, _ := types.LookupFieldOrMethod(t, false, nil, name); obj != nil {
			if f, ok := obj.(*types.Func); ok && f.Signature().Params().Len() == 0 {
				return false
			}
		}
	}
	switch u := t.Underlying().(type) {
	case *types.Struct:
		return true
	case *types.Pointer:
		return printsFields(u.Elem())
	case *types.Slice:
		return printsFields(u.Elem())
	case *types.Array:
		return printsFields(u.Elem())
	case *types.Map:
		return printsFields(u.Key()) || printsFields(u.Elem())
	}
	return false
}
