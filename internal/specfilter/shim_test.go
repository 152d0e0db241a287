package specfilter

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/testutil"
)

// envShim makes the test binary the shim. Its value is the path of the configuration.
const envShim = "ROOTLESSNODE_TEST_SHIM"

func TestMain(m *testing.M) {
	if path := os.Getenv(envShim); path != "" {
		_, _ = os.Stderr.WriteString(Exec(path, os.Args).Error())
		os.Exit(1)
	}
	testutil.QuickChildren()
	os.Exit(m.Run())
}

func TestParseCall(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		line                            string
		command, bundle, resources, log string
	}{
		{"--root /run/containerd/runc/k8s.io --log /b/log.json --log-format json create --bundle /b --pid-file /b/init.pid --console-socket /c id",
			"create", "/b", "", "/b/log.json"},
		{"run -b=/b id", "run", "/b", "", ""},
		{"-root x --debug run --pid-file --bundle -bundle /b id", "run", "/b", "", ""},
		{"create id --bundle /ignored", "create", ".", "", ""},
		{"create -- --bundle", "create", ".", "", ""},
		{"--root create start id", "start", ".", "", ""},
		{"--rootless=true update --resources=- id", "update", ".", "-", ""},
		{"update -r - id", "update", ".", "-", ""},
		{"update --resources /f id", "update", ".", "/f", ""},
		{"restore --image-path i --work-path w --bundle /b id", "restore", "/b", "", ""},
		{"exec --process /p --bundle /x id", "exec", ".", "", ""},
		{"--version", "", ".", "", ""},
		{"", "", ".", "", ""},
		{"create --bundle", "create", ".", "", ""},
	} {
		c := parseCall(strings.Fields(tc.line))
		assert.Equal(t, c.command, tc.command, tc.line)
		assert.Equal(t, c.bundle, tc.bundle, tc.line)
		assert.Equal(t, c.resources, tc.resources, tc.line)
		assert.Equal(t, c.log, tc.log, tc.line)
	}
}

func FuzzParseCall(f *testing.F) {
	f.Add("--log\x00l\x00update\x00--cpu-share\x002\x00--pids-limit=3\x00id")
	f.Add("update\x00-r\x00-\x00id")
	f.Fuzz(func(t *testing.T, line string) {
		args := strings.Split(line, "\x00")
		c := parseCall(args)
		assert.DeepEqual(t, c.withoutFlags(args, nil), args)
		once := c.withoutFlags(args, hybrid())
		again := parseCall(once)
		assert.DeepEqual(t, again.withoutFlags(once, hybrid()), once)
	})
}

func TestParseConfig(t *testing.T) {
	t.Parallel()
	c := Config{Runc: "/usr/bin/runc", Drop: []string{"cpu", "io"}}
	got, err := ParseConfig(c.Render())
	assert.NilError(t, err)
	assert.DeepEqual(t, got, c)
	for text, want := range map[string]string{
		`{"runc":"runc"}`:                  "is not an absolute path",
		`{"runc":"/r","drop":["cgroup"]}`:  `"cgroup" is not a controller name`,
		`{"runc":"/r","drop":["cpu.max"]}`: "is not a controller name",
		`{"runc":"/r","drop":[""]}`:        "is not a controller name",
		`{"runc":"/r","dorp":[]}`:          "unknown field",
		`nonsense`:                         "parse shim configuration",
		``:                                 "parse shim configuration",
	} {
		_, err := ParseConfig([]byte(text))
		assert.ErrorContains(t, err, want, text)
	}
}

// shim is an installed shim with a fake runc that records its arguments and exits with 7.
type shim struct{ dir string }

func newShim(t *testing.T, drop ...string) shim {
	t.Helper()
	s := shim{t.TempDir()}
	testutil.Script(t, filepath.Join(s.dir, "runc"), "cd \"$(dirname \"$0\")\"\nprintf '%s\\n' \"$@\" > argv\ncat > stdin\nexit 7\n")
	s.write(t, "shim.json", string(Config{Runc: filepath.Join(s.dir, "runc"), Drop: drop}.Render()), 0o600)
	return s
}

func (s shim) write(t *testing.T, name, text string, mode os.FileMode) {
	t.Helper()
	assert.NilError(t, os.WriteFile(filepath.Join(s.dir, name), []byte(text), mode))
}

func (s shim) read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(s.dir, name))
	assert.NilError(t, err)
	return string(b)
}

func (s shim) run(stdin io.Reader, args ...string) (code int, stderr string) {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), envShim+"="+filepath.Join(s.dir, "shim.json"))
	cmd.Dir = s.dir
	cmd.Stdin = stdin
	var e bytes.Buffer
	cmd.Stderr = &e
	err := cmd.Run()
	var ee *exec.ExitError
	if errors.As(err, &ee) {
		return ee.ExitCode(), e.String()
	}
	return 0, e.String()
}

func TestCreate(t *testing.T) {
	t.Parallel()
	s := newShim(t, "cpu")
	s.write(t, "config.json", `{"linux":{"resources":{"cpu":{"shares":2,"cpus":"0"}}}}`, 0o640)
	code, stderr := s.run(nil, "--root", "/r", "create", "--bundle", s.dir, "id")
	assert.Equal(t, code, 7, stderr)
	assert.Equal(t, s.read(t, "argv"), "--root\n/r\ncreate\n--bundle\n"+s.dir+"\nid\n")
	assert.Equal(t, s.read(t, "config.json"), `{"linux":{"resources":{"cpu":{"cpus":"0"}}}}`)
	st, err := os.Stat(filepath.Join(s.dir, "config.json"))
	assert.NilError(t, err)
	assert.Equal(t, st.Mode().Perm(), os.FileMode(0o640))
	left, err := filepath.Glob(filepath.Join(s.dir, ".*"))
	assert.NilError(t, err)
	assert.Equal(t, len(left), 0)
}

func TestCreateInCurrentDirectoryKeepsUnchangedFile(t *testing.T) {
	t.Parallel()
	s := newShim(t, "memory")
	s.write(t, "config.json", `{ "linux": {"resources": {"cpu": {"shares": 2}}}}`, 0o600)
	before, err := os.Stat(filepath.Join(s.dir, "config.json"))
	assert.NilError(t, err)
	code, _ := s.run(nil, "run", "id")
	assert.Equal(t, code, 7)
	after, err := os.Stat(filepath.Join(s.dir, "config.json"))
	assert.NilError(t, err)
	assert.Assert(t, os.SameFile(before, after))
}

func TestUpdate(t *testing.T) {
	t.Parallel()
	const in = `{"cpu":{"shares":2},"pids":{"limit":5}}`
	s := newShim(t, "cpu")
	code, stderr := s.run(strings.NewReader(in), "update", "--resources=-", "id")
	assert.Equal(t, code, 7, stderr)
	assert.Equal(t, s.read(t, "stdin"), `{"pids":{"limit":5}}`)
	assert.Equal(t, s.read(t, "argv"), "update\n--resources=-\nid\n")

	s.write(t, "res", in, 0o600)
	code, stderr = s.run(nil, "update", "-r", "res", "id")
	assert.Equal(t, code, 7, stderr)
	assert.Equal(t, s.read(t, "stdin"), `{"pids":{"limit":5}}`)
	assert.Equal(t, s.read(t, "argv"), "update\n--resources=-\nid\n")
	assert.Equal(t, s.read(t, "res"), in)

	// If no limit remains, runc is called with an empty set.
	code, stderr = s.run(strings.NewReader(`{"cpu":{"shares":2}}`), "update", "--resources=-", "id")
	assert.Equal(t, code, 7, stderr)
	assert.Equal(t, s.read(t, "stdin"), `{}`)

	code, stderr = s.run(nil, "update", "--cpu-share", "2", "--pids-limit=5", "--cpu-quota=1", "id")
	assert.Equal(t, code, 7, stderr)
	assert.Equal(t, s.read(t, "argv"), "update\n--pids-limit=5\nid\n")

	big := io.MultiReader(strings.NewReader(`{"a":"`), strings.NewReader(strings.Repeat("x", maxResources)))
	code, stderr = s.run(big, "update", "--resources=-", "id")
	assert.Equal(t, code, 1)
	assert.Assert(t, is.Contains(stderr, "larger than 1048576 bytes"))
}

func TestEverythingElsePassesThrough(t *testing.T) {
	t.Parallel()
	s := newShim(t, "cpu")
	code, _ := s.run(strings.NewReader("input"), "exec", "--process", "/p", "id")
	assert.Equal(t, code, 7)
	assert.Equal(t, s.read(t, "stdin"), "input")
	assert.Equal(t, s.read(t, "argv"), "exec\n--process\n/p\nid\n")
}

// TestErrorsReachContainerd checks that runc's log ends with a JSON line of level error, from which containerd's shim reads the reason.
func TestErrorsReachContainerd(t *testing.T) {
	t.Parallel()
	s := newShim(t, "cpu")
	s.write(t, "config.json", `{"linux":[`, 0o600)
	code, stderr := s.run(nil, "--log", "log.json", "--log-format", "json", "create", "--bundle", ".", "id")
	assert.Equal(t, code, 1)
	assert.Assert(t, is.Contains(stderr, "config.json: parse OCI specification"))
	var line struct{ Level, Msg string }
	assert.NilError(t, json.Unmarshal([]byte(s.read(t, "log.json")), &line))
	assert.Equal(t, line.Level, "error")
	assert.Assert(t, is.Contains(line.Msg, "rootlessnode-runc: config.json: parse OCI specification"))

	s.write(t, "config.json", `{}`, 0o600)
	s.write(t, "shim.json", string(Config{Runc: "/nowhere/runc"}.Render()), 0o600)
	code, stderr = s.run(nil, "--log", "log.txt", "create", "id")
	assert.Equal(t, code, 1)
	assert.Assert(t, is.Contains(stderr, "execute /nowhere/runc: no such file or directory"))
	assert.Assert(t, is.Contains(s.read(t, "log.txt"), "level=error msg="))
}

// TestOtherRuntimes checks that the name of the shim selects the program.
func TestOtherRuntimes(t *testing.T) {
	t.Parallel()
	s := newShim(t, "cpu")
	testutil.Script(t, filepath.Join(s.dir, "crun"), "exit 8\n")
	s.write(t, "shim.json", string(Config{Runc: s.dir + "/runc", Drop: []string{"cpu"}, Runtimes: map[string]string{"crun": s.dir + "/crun"}}.Render()), 0o600)
	s.write(t, "config.json", `{"ociVersion":"1.3.0","linux":{"resources":{"cpu":{"shares":2}}}}`, 0o600)
	exe, err := os.Executable()
	assert.NilError(t, err)
	for name, code := range map[string]int{"crun": 8, "other": 7} {
		link := filepath.Join(s.dir, "oci-"+name, name)
		assert.NilError(t, os.Mkdir(filepath.Dir(link), 0o700))
		assert.NilError(t, os.Symlink(exe, link))
		cmd := exec.Command(link, "create", "--bundle", s.dir, "id")
		cmd.Env = append(os.Environ(), envShim+"="+filepath.Join(s.dir, "shim.json"))
		var exit *exec.ExitError
		assert.Assert(t, errors.As(cmd.Run(), &exit))
		assert.Equal(t, exit.ExitCode(), code, name)
	}
	assert.Equal(t, s.read(t, "config.json"), `{"ociVersion":"1.0.2","linux":{"resources":{}}}`)
	_, err = ParseConfig([]byte(`{"runc":"/r","runtimes":{"x":"y"}}`))
	assert.ErrorContains(t, err, "runtimes: x:")
}
