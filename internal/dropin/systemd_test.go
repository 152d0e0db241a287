package dropin

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gotest.tools/v3/assert"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// commandLines returns the commands that systemd reads from a unit and its drop-ins, in order, quoted for a shell.
func commandLines(t *testing.T, path string) []string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", "--recursive-errors=no", path)
	cmd.Env = append(os.Environ(), "SYSTEMD_LOG_LEVEL=debug", "SYSTEMD_UNIT_PATH="+filepath.Dir(path)+":")
	out, err := cmd.Output()
	assert.NilError(t, err, "%s", out)
	var lines []string
	_, text, ok := strings.Cut(string(out), "Unit "+filepath.Base(path))
	if !ok {
		text = string(out)
	}
	for line := range strings.Lines(text) {
		if _, command, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "Command Line: "); ok {
			lines = append(lines, command)
		}
	}
	return lines
}

// TestSystemdReadsTheSame parses services with systemd itself, before and after. The wrapped command must end with the same
// words.
func TestSystemdReadsTheSame(t *testing.T) {
	t.Parallel()
	testutil.Require(t, testutil.Program("systemd-analyze"))
	const before = "/bin/true mountns exec --name kubens "
	for _, tc := range []struct{ line, argv0, program string }{
		{`/bin/echo a "b c" 'd "e"' $F ${G} $$H %n %% \x41\t\x20 \\ "i\"j" 'k\'l' \; ";" a;b`, "", "/bin/echo"},
		{"/bin/echo one \\\n# comment\n; comment\n   two \"in quotes \\\n  continues\" \\\n three", "", "/bin/echo"},
		{`-/bin/echo pre"mid dle"post ""  ''  end`, "", "/bin/echo"},
		{`"-/bin/echo" -x`, "", "/bin/echo"},
		{`-"/bin/echo" -x`, "", "/bin/echo"},
		{`:/bin/echo $not ${Replaced}`, "", "/bin/echo"},
		{`+/bin/echo x`, "", "/bin/echo"},
		{`!!/bin/echo x`, "", "/bin/echo"},
		{`@-/bin/echo "argv 0" --flag`, `"argv 0"`, "/bin/echo"},
		{`@/bin/echo -called`, "-called", "/bin/echo"},
		{"/bin/echo\ttabs\t\tbetween \t", "", "/bin/echo"},
		{`/bin/echo --json={"a":1} --q=\"x\"`, "", "/bin/echo"},
	} {
		_, o := units(t, map[string]string{"a.service": "[Service]\nType=oneshot\nExecStart=" + tc.line + "\nExecStart=/bin/echo sentinel\n"})
		o.Exe = "/bin/true" // systemd checks that it exists
		path := filepath.Join(o.Dir, "a.service")
		plain := commandLines(t, path)
		assert.Equal(t, len(plain), 2, "%s: %q", tc.line, plain)
		p, err := NewPlan(t.Context(), o, []string{"a.service"})
		assert.NilError(t, err)
		_, err = p.Apply(t.Context())
		assert.NilError(t, err)
		want := before + "-- " + plain[0]
		if tc.argv0 != "" {
			rest, ok := strings.CutPrefix(plain[0], tc.argv0)
			assert.Assert(t, ok, plain[0])
			want = before + "--argv0 " + tc.argv0 + " -- " + tc.program + rest
		}
		wrapped := commandLines(t, path)
		var got []string
		for _, line := range wrapped { // skip those of the namespace's unit
			if strings.HasPrefix(line, before) {
				got = append(got, line)
			}
		}
		assert.DeepEqual(t, got, []string{want, before + "-- /bin/echo sentinel"})
	}
}

// TestSystemdSplitsTheSame covers several commands in one line, separated by semicolons.
func TestSystemdSplitsTheSame(t *testing.T) {
	t.Parallel()
	testutil.Require(t, testutil.Program("systemd-analyze"))
	const line = `/bin/echo a ; -/bin/echo b \; c ; /bin/echo ";" ';' x; y ;/bin/echo d ; `
	f, o := units(t, map[string]string{"a.service": "[Service]\nType=oneshot\nExecStart=" + line + "\n"})
	plain := commandLines(t, filepath.Join(f.dir, "a.service"))
	commands, err := splitCommands(line)
	assert.NilError(t, err)
	var unit strings.Builder
	unit.WriteString("[Service]\nType=oneshot\n")
	for _, c := range commands {
		unit.WriteString("ExecStart=" + strings.TrimSpace(c.prefixes+c.program+" "+c.args) + "\n")
	}
	assert.NilError(t, os.WriteFile(filepath.Join(o.Dir, "b.service"), []byte(unit.String()), 0o644))
	assert.DeepEqual(t, commandLines(t, filepath.Join(o.Dir, "b.service")), plain)
	assert.Assert(t, len(plain) >= 3, "%q", plain)
}

// FuzzWords checks that wrapping the split commands loses nothing.
func FuzzWords(f *testing.F) {
	f.Add(tricky)
	f.Add(`-@"/a b" 'c' d ; : e \`)
	f.Fuzz(func(t *testing.T, text string) {
		for _, a := range parseUnit(text) {
			if strings.ContainsAny(a.value, "\n") {
				t.Fatalf("a value with several lines: %q", a.value)
			}
		}
		commands, err := splitCommands(text)
		if err != nil {
			return
		}
		for _, c := range commands {
			if c.program == "" {
				t.Fatalf("no program in %q", text)
			}
			if !strings.Contains(text, c.args) || !strings.Contains(text, c.argv0) {
				t.Fatalf("%+v is not part of %q", c, text)
			}
			again, err := splitCommands(c.wrap("/x", "y"))
			if err != nil || len(again) != 1 || !strings.HasSuffix(again[0].args, c.args) {
				t.Fatalf("%+v wrapped reads as %+v, %v", c, again, err)
			}
		}
	})
}
