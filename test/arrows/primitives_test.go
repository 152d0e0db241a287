package arrows

import (
	"go/ast"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"gotest.tools/v3/assert"
)

// checkUse reports uses of a primitive outside its package. It fails also if an exception is no longer needed.
func checkUse(t *testing.T, home string, exceptions map[string]string, uses func(n ast.Node) (use string, ok bool)) {
	t.Helper()
	needed := map[string]bool{}
	eachFile(t, func(path string, file *ast.File) {
		if filepath.Dir(path) == home {
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			use, ok := uses(n)
			if !ok {
				return true
			}
			needed[path] = true
			if exceptions[path] == "" {
				t.Errorf("%s: %s: use %s", path, use, home)
			}
			return true
		})
	})
	for path := range exceptions {
		assert.Check(t, needed[path], "the exception for %s is not needed any more", path)
	}
}

// calls matches calls of functions of packages, such as "os.Rename".
func calls(names ...string) func(ast.Node) (string, bool) {
	return func(n ast.Node) (string, bool) {
		s, ok := n.(*ast.SelectorExpr)
		if !ok {
			return "", false
		}
		pkg, ok := s.X.(*ast.Ident)
		if !ok {
			return "", false
		}
		name := pkg.Name + "." + s.Sel.Name
		return name, slices.Contains(names, name)
	}
}

// literals matches string literals by their text.
func literals(pattern string) func(ast.Node) (string, bool) {
	match := regexp.MustCompile(pattern)
	return func(n ast.Node) (string, bool) {
		lit, ok := n.(*ast.BasicLit)
		if !ok || lit.Kind != token.STRING {
			return "", false
		}
		text, err := strconv.Unquote(lit.Value)
		return lit.Value, err == nil && match.MatchString(text)
	}
}

// TestFilesAreReplacedInOnePackage checks that no other package writes a temporary file and renames it.
func TestFilesAreReplacedInOnePackage(t *testing.T) {
	t.Parallel()
	checkUse(t, "internal/atomicfile", map[string]string{
		"internal/supervisor/output.go": "rotates a log",
		"pkg/node/start.go":             "rotates a log",
	}, calls("os.Rename", "unix.Rename", "unix.Renameat", "unix.Renameat2", "syscall.Rename"))
}

// TestProcIsReadInOnePackage checks that no other package parses /proc/PID/stat or opens pidfds.
func TestProcIsReadInOnePackage(t *testing.T) {
	t.Parallel()
	path := literals(`/(stat|comm)$|^/proc/self/status$`)
	name := literals(`^(stat|comm)$`)
	checkUse(t, "internal/proc", nil, func(n ast.Node) (string, bool) {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return path(n)
		}
		if f, ok := call.Fun.(*ast.SelectorExpr); !ok || f.Sel.Name != "Join" {
			return "", false
		}
		for _, arg := range call.Args {
			if text, ok := name(arg); ok {
				return text, true
			}
		}
		return "", false
	})
	checkUse(t, "internal/proc", nil, calls("unix.PidfdOpen", "unix.PidfdSendSignal"))
}

// TestCgroupsAreKilledInOnePackage checks that no other package lists, signals or kills the processes of a cgroup.
func TestCgroupsAreKilledInOnePackage(t *testing.T) {
	t.Parallel()
	checkUse(t, "pkg/cgroupv2", map[string]string{
		"internal/testutil/require.go": "checks the requirements of tests, and must not import what they test",
	}, literals(`cgroup\.(procs|threads|kill|events|freeze|controllers|subtree_control|type)$|^/proc/self/cgroup$|^(cpu|memory|io)\.stat$|^memory\.current$`))
}

// TestProcessesAreNotKilledByID checks that only code for its own children, which it has not reaped yet, uses process IDs in signals,
// because the kernel may give the ID of a reaped process to another one.
func TestProcessesAreNotKilledByID(t *testing.T) {
	t.Parallel()
	checkUse(t, "internal/proc", map[string]string{
		"internal/supervisor/process.go":   "signals a group while its leader is not reaped",
		"internal/supervisor/procgroup.go": "kills a group before its leader is reaped",
		"internal/nodeexec/process.go":     "signals a group while its leader is not reaped",
		"internal/nodeexec/signals.go":     "stops the calling process",
		"internal/hostsetup/relay.go":      "stops the calling process, and signals a group before its leader is reaped",
	}, calls("unix.Kill", "syscall.Kill", "unix.Tgkill", "os.FindProcess"))
}
