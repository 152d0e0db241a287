package arrows

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
)

// commandLine matches the text of a command line of rootlessnode.
var commandLine = regexp.MustCompile(`rootlessnode (--|(up|down|status|token|kubectl|kubeconfig|exec|shell|images|ports|mounts|top|events|logs|check|report|` +
	`install|uninstall|config|host|manifests|mountns|version|drain-and-leave)\b)`)

// writtenByProgram lists texts that files on the host keep. They identify files of this program, so their wording is fixed.
var writtenByProgram = regexp.MustCompile(`^.# Written by .?["` + "`" + `]rootlessnode `)

// TestLibraryHasNoCommandLines checks that no string of the library contains a command line, because a program that embeds a node has
// other commands. Hints carry actions (errdefs.Step), which cmd/rootlessnode renders.
func TestLibraryHasNoCommandLines(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	for _, dir := range []string{"config", "internal", "pkg", "examples"} {
		assert.NilError(t, filepath.WalkDir(filepath.Join(root, dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, found := range commandLines(t, path, text) {
				t.Error(found)
			}
			return nil
		}))
	}
}

// commandLines returns the positions and texts of the string literals that contain a command line.
func commandLines(t *testing.T, path string, text []byte) []string {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, text, parser.SkipObjectResolution)
	assert.NilError(t, err)
	var found []string
	ast.Inspect(file, func(n ast.Node) bool {
		if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING && commandLine.MatchString(lit.Value) && !writtenByProgram.MatchString(lit.Value) {
			found = append(found, set.Position(lit.Pos()).String()+": "+lit.Value)
		}
		return true
	})
	return found
}

// TestCommandLinesAreFound checks the check.
func TestCommandLinesAreFound(t *testing.T) {
	t.Parallel()
	got := commandLines(t, "x.go", []byte("package x\n// rootlessnode up\nvar a, b, c = \"rootlessnode --name x\", `# then:\nrootlessnode down`, \"rootlessnode updates\"\n"))
	assert.Equal(t, len(got), 2, got)
}
