package preflight

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/golden"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// codes lists all codes that a version has had, also those of removed checks, because a code is never used again. Add new ones.
var codes = []string{
	"RN-ROOT", "RN-ACCOUNT", "RN-SUBIDS", "RN-IDMAP", "RN-RUNTIME-DIR", "RN-LINGER",
	"RN-USERNS", "RN-PROC", "RN-KERNEL", "RN-MODULES", "RN-INOTIFY", "RN-OPEN-FILES", "RN-CGROUP", "RN-RESOURCES",
	"RN-PROGRAMS", "RN-NETWORK-PROGRAM", "RN-NETWORK-POLICY", "RN-TUN", "RN-PORTS", "RN-ROUTES",
	"RN-MOUNTS", "RN-SOCKET-PATHS", "RN-DATA-DIR", "RN-DATA-IDS", "RN-DISK-SPACE",
	"RN-COMPONENTS", "RN-RUNTIME",
	"RN-LIMITS", "RN-PROCESSES", "RN-MEMORY", "RN-KEYS", "RN-CLOCK", "RN-NAMESPACES", "RN-NETWORK-DEVICES", "RN-RESOLV-CONF", "RN-HOSTS",
	"RN-PROXY", "RN-CA-FILES", "RN-TMP", "RN-DATA-FILES", "RN-OVERLAY", "RN-HOME", "RN-DATA-PATH",
}

func TestCatalogue(t *testing.T) {
	t.Parallel()
	wellFormed := regexp.MustCompile(`^RN(-[A-Z]+)+$`)
	seen := map[string]bool{}
	for _, c := range checks() {
		assert.Assert(t, wellFormed.MatchString(c.Code), c.Code)
		assert.Assert(t, slices.Contains(codes, c.Code), "%s is not in the list of codes", c.Code)
		assert.Assert(t, !seen[c.Code] && !seen[c.Name], c.Code)
		seen[c.Code], seen[c.Name] = true, true
		assert.Assert(t, c.Title != "" && c.Why != "" && c.Fix != "" && c.Fails+c.Warns != "", c.Code)
		for _, by := range []string{c.Code, strings.ToLower(c.Code), c.Name} {
			found, ok := Explain(by)
			assert.Assert(t, ok && found.Name == c.Name, by)
		}
	}
	_, ok := Explain("RN-X")
	assert.Assert(t, !ok)
	assert.Equal(t, checks()[0].Name, rootCheck)
}

const page = "../../docs/checks.md"

const head = `# Checks of the host

<!-- This page is generated from the catalogue of checks: go generate ./internal/preflight -->

` + "`rootlessnode check`" + ` compares the host with the requirements of a node, and ` + "`rootlessnode up`" + ` does the same before it starts anything. Each check
has a code that never changes and is never used for another check. Messages, ` + "`check -o json`" + ` and this page use the codes.

| Result | Meaning |
|---|---|
| pass | The requirement is met. |
| warn | The node starts, but a feature is missing or may fail. |
| fail | The node cannot start. ` + "`check` and `up`" + ` end with exit code 3. |

Every finding has the value that was found, the reason why it matters, and the commands that fix it on this host.
` + "`rootlessnode check --root-script | sudo sh`" + ` runs all commands that need root. ` + "`rootlessnode check --explain CODE`" + ` prints the text below.
Several checks try the operation itself, in namespaces of their own; they leave nothing behind.
`

func renderPage() string {
	var b strings.Builder
	b.WriteString(head)
	for _, s := range sections() {
		fmt.Fprintf(&b, "\n## %s\n", s.heading)
		for _, c := range s.checks {
			fmt.Fprintf(&b, "\n### %s\n\n%s.\n\n", c.Code, sentence("Checks "+c.Title))
			fmt.Fprintf(&b, "* Why: %s.\n", c.Why)
			for _, l := range []struct{ head, text string }{{"Fails if", c.Fails}, {"Warns if", c.Warns}} {
				if l.text != "" {
					fmt.Fprintf(&b, "* %s: %s.\n", l.head, l.text)
				}
			}
			fmt.Fprintf(&b, "* Fix: %s\n", c.Fix)
		}
	}
	return b.String()
}

func sentence(s string) string { return strings.ToUpper(s[:1]) + s[1:] }

// TestDocs checks that docs/checks.md matches the catalogue. With -update, as in go generate, it writes the page.
func TestDocs(t *testing.T) {
	t.Parallel()
	if golden.FlagUpdate() {
		assert.NilError(t, os.WriteFile(page, []byte(renderPage()), 0o644))
		return
	}
	got, err := os.ReadFile(page)
	assert.NilError(t, err)
	assert.Equal(t, string(got), renderPage(), "%s is stale: go generate ./internal/preflight", page)
}

// TestRootScript runs the script of a host with many faults twice in a fake root, with programs that record their arguments.
func TestRootScript(t *testing.T) {
	t.Parallel()
	f := goodHost(t)
	f.remove("bin/newuidmap")
	f.remove("bin/nft")
	f.remove("bin/iptables")
	f.write("etc/subuid", "other:100000:65536\n")
	f.write("etc/subgid", "dev:165536:65536\r\n")
	f.write("proc/sys/fs/inotify/max_user_instances", "128\n")
	f.dir("run/systemd/system", 0o755)
	f.set("dataDir", "/x") // the path of the finding is that of Input.Data
	hostile := "a\n$(touch HURT)`touch HURT`';touch HURT;'"
	f.dir(hostile, 0o755)
	f.in.Data.Dir = f.path(hostile)
	f.in.UID++
	f.write("etc/passwd", fmt.Sprintf("d e v;touch HURT:x:%d:4000::/:/bin/sh\n", f.in.UID))
	found := Run(t.Context(), f.in)
	script := RootScript(found, actionWords)
	assertShell(t, script)
	assert.Assert(t, !strings.Contains(script, "sudo "), script)

	run := func() (calls string) {
		dir, bin := t.TempDir(), t.TempDir()
		for _, name := range []string{"apt-get", "usermod", "sed", "sysctl", "tee", "loginctl", "chown", "chmod", "install", "grep"} {
			testutil.Script(t, filepath.Join(bin, name), "printf '%s|' "+name+` "$@" >> calls; echo >> calls`+"\n")
		}
		cmd := exec.CommandContext(t.Context(), "/bin/sh")
		cmd.Dir, cmd.Stdin, cmd.Env = dir, strings.NewReader(script), []string{"PATH=" + bin}
		out, err := cmd.CombinedOutput()
		assert.NilError(t, err, "%s\n%s", out, script)
		entries, err := filepath.Glob(dir + "/*")
		assert.NilError(t, err)
		assert.DeepEqual(t, entries, []string{dir + "/calls"})
		b, err := os.ReadFile(dir + "/calls")
		assert.NilError(t, err)
		return string(b)
	}
	calls := run()
	for _, want := range []string{
		"apt-get|install|-y|nftables|uidmap|\n", "usermod|--add-subuids|231072-296607|d e v;touch HURT|\n",
		"sysctl|-w|fs.inotify.max_user_instances=512|\n", "loginctl|enable-linger|d e v;touch HURT|\n",
		"chmod|0700|" + f.path(hostile) + "|\n",
	} {
		assert.Assert(t, strings.Contains(calls, want), "%s\nnot in\n%s\n%s", want, calls, script)
	}
	assert.Equal(t, strings.Count(calls, "apt-get"), 1)
}

func TestRootScriptWithoutFindings(t *testing.T) {
	t.Parallel()
	script := RootScript(Run(t.Context(), goodHost(t).in), actionWords)
	assert.Assert(t, strings.Contains(script, "nothing to do"), script)
	out, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", script).CombinedOutput()
	assert.NilError(t, err, "%s", out)
}

// A failed command does not stop the others, and the script exits with 1.
func TestRootScriptContinues(t *testing.T) {
	t.Parallel()
	finding := func(code, command string) Finding {
		f := warn("x").hint(asRoot(command))
		f.Code = code
		return f
	}
	script := RootScript([]Finding{finding("RN-A", "false"), finding("RN-B", "cat; echo second"), finding("RN-C", "exit 7")}, actionWords)
	cmd := exec.CommandContext(t.Context(), "/bin/sh")
	cmd.Stdin = strings.NewReader(script)
	out, err := cmd.CombinedOutput()
	assert.ErrorContains(t, err, "exit status 1")
	assert.Equal(t, string(out), "second\nfailed: RN-A RN-C\n")
}

// The script does not run a program that an account can replace.
func TestRootScriptDistrustsTheProgram(t *testing.T) {
	t.Parallel()
	f := goodHost(t)
	f.in.Probes.RootOnly = func(path string) error { return fmt.Errorf("%s belongs to uid 7", path) }
	f.in.UID = 0
	script := RootScript(Run(t.Context(), f.in), actionWords)
	assert.Assert(t, strings.Contains(script, "belongs to uid 7") && !strings.Contains(script, "create-account"), script)
	f.in.Probes.RootOnly = func(string) error { return nil }
	script = RootScript(Run(t.Context(), f.in), actionWords)
	assert.Assert(t, strings.Contains(script, "\ncreate-account rootlessnode\n"), script)
}
