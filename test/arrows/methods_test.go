package arrows

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
)

// maxMethods is the largest number of methods of a type. A type with more has several tasks.
const maxMethods = 25

// TestTypesAreSmall checks the number of methods of each type, except in tests.
func TestTypesAreSmall(t *testing.T) {
	t.Parallel()
	methods := map[string]int{}
	eachFile(t, func(path string, file *ast.File) {
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv != nil {
				methods[filepath.Dir(path)+"."+receiver(f.Recv.List[0].Type)]++
			}
		}
	})
	assert.Assert(t, len(methods) > 100)
	for name, n := range methods {
		if n > maxMethods {
			t.Errorf("%s has %d methods, more than %d: split it", name, n, maxMethods)
		}
	}
}

// receiver returns the name of the type of a receiver.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// eachFile parses the Go files of the module that are not tests. Paths are relative to the root of the repository.
func eachFile(t *testing.T, fn func(path string, file *ast.File)) {
	t.Helper()
	for _, dir := range []string{"cmd", "config", "docs", "internal", "pkg"} {
		assert.NilError(t, filepath.WalkDir(filepath.Join("..", "..", dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			fn(strings.TrimPrefix(filepath.ToSlash(path), "../../"), file)
			return nil
		}))
	}
}
