package arrows

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// embedders lists the packages that other programs import, without pkg/parent and pkg/child: those are public for programs that
// start the roles themselves, with values from pkg/node.
var embedders = []string{"config", "pkg/node", "pkg/status", "pkg/errdefs", "pkg/portfwd", "pkg/portdriver", "pkg/copyup", "pkg/cgroupv2",
	"pkg/mountns"}

// TestPublicAPINamesNoInternalType checks the signatures and fields of public packages: other modules cannot name the types of
// internal packages. An alias in the public package makes such a type public.
func TestPublicAPINamesNoInternalType(t *testing.T) {
	t.Parallel()
	eachFile(t, func(path string, file *ast.File) {
		if !slices.Contains(embedders, path[:strings.LastIndex(path, "/")]) {
			return
		}
		internal := map[string]bool{}
		for _, i := range file.Imports {
			if p := strings.Trim(i.Path.Value, `"`); strings.HasPrefix(p, module+"internal/") {
				internal[p[strings.LastIndex(p, "/")+1:]] = true
			}
		}
		check := func(name string, n ast.Node) {
			ast.Inspect(n, func(n ast.Node) bool {
				s, ok := n.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				if x, ok := s.X.(*ast.Ident); ok && internal[x.Name] {
					t.Errorf("%s: %s uses %s.%s, which other modules cannot name: add an alias", path, name, x.Name, s.Sel.Name)
				}
				return true
			})
		}
		for _, d := range file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && (d.Recv == nil || ast.IsExported(receiver(d.Recv.List[0].Type))) {
					check(d.Name.Name, d.Type)
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					if s, ok := s.(*ast.TypeSpec); ok && s.Name.IsExported() && !s.Assign.IsValid() {
						checkType(s, check)
					}
				}
			}
		}
	})
}

// checkType calls check with the exported fields or methods of a type.
func checkType(s *ast.TypeSpec, check func(string, ast.Node)) {
	var fields *ast.FieldList
	switch x := s.Type.(type) {
	case *ast.StructType:
		fields = x.Fields
	case *ast.InterfaceType:
		fields = x.Methods
	default:
		check(s.Name.Name, s.Type)
		return
	}
	for _, f := range fields.List {
		if len(f.Names) == 0 || slices.ContainsFunc(f.Names, (*ast.Ident).IsExported) {
			check(s.Name.Name, f.Type)
		}
	}
}

// TestExamplesUseThePublicAPI checks that examples can be compiled in another module.
func TestExamplesUseThePublicAPI(t *testing.T) {
	t.Parallel()
	for _, p := range list(t) {
		for _, to := range p.imports {
			if strings.HasPrefix(p.path, "examples/") && strings.HasPrefix(to, module+"internal/") {
				t.Errorf("%s imports %s, which other modules cannot import", p.path, to)
			}
		}
	}
}
