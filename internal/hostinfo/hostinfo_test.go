package hostinfo

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
)

func write(t *testing.T, root, path, text string) {
	t.Helper()
	p := filepath.Join(root, path)
	assert.NilError(t, os.MkdirAll(filepath.Dir(p), 0o755))
	assert.NilError(t, os.WriteFile(p, []byte(text), 0o644))
}

func TestLookup(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	_, ok, err := Lookup(t.Context(), root, "a", "")
	assert.NilError(t, err)
	assert.Assert(t, !ok, "no passwd file")

	write(t, root, "etc/passwd", "root:x:0:0:root:/root:/bin/sh\n# comment\nbroken:x:1\n+nis\nneg:x:-1:0:::\na:x:1000:1001:A,,,:/home/a:/bin/bash")
	for _, key := range []string{"a", "1000"} {
		got, ok, err := Lookup(t.Context(), root, key, "")
		assert.NilError(t, err)
		assert.Assert(t, ok)
		assert.DeepEqual(t, got, Account{Name: "a", UID: 1000, GID: 1001, Home: "/home/a", Shell: "/bin/bash"})
	}
	for _, key := range []string{"b", "1", "broken", "neg", ""} {
		_, ok, err := Lookup(t.Context(), root, key, "/bin/false")
		assert.NilError(t, err)
		assert.Assert(t, !ok, key)
	}
}

func TestGroups(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write(t, root, "etc/group", "root:x:0:\nown:x:5:a\nwheel:x:10:b,a\nkvm:x:11:ab\naudio:x:12:a\nbad:x\n")
	got, err := Groups(root, Account{Name: "a", GID: 5})
	assert.NilError(t, err)
	assert.DeepEqual(t, got, []int{5, 10, 12})
}

func TestParseSubids(t *testing.T) {
	t.Parallel()
	rows, bad := ParseSubids([]byte("# c\n\na:100000:65536\n1000:1:2\nx\na:b:c\na:1:-1\na:4294967295:1\n :1:2:3\na:4294967290:6\nb:5:1"), "F")
	assert.DeepEqual(t, rows, []SubidRow{
		{"a", 100000, 65536, "F line 3"}, {"1000", 1, 2, "F line 4"}, {"b", 5, 1, "F line 11"},
	})
	const notDecimal, tooHigh = "is not NAME:START:COUNT with decimal numbers", "has ids above 4294967294, the highest id of the kernel"
	assert.DeepEqual(t, bad, []BadSubid{
		{Where: "F line 5", Text: "x", Owner: "x", Reason: "is not NAME:START:COUNT", Blocks: true},
		{Where: "F line 6", Text: "a:b:c", Owner: "a", Reason: notDecimal}, {Where: "F line 7", Text: "a:1:-1", Owner: "a", Reason: notDecimal},
		{Where: "F line 8", Text: "a:4294967295:1", Owner: "a", Reason: tooHigh},
		{Where: "F line 9", Text: ":1:2:3", Reason: "is not NAME:START:COUNT", Blocks: true},
		{Where: "F line 10", Text: "a:4294967290:6", Owner: "a", Reason: tooHigh},
	})
	assert.Assert(t, rows[1].BelongsTo(Account{Name: "z", UID: 1000}))
	assert.Assert(t, !rows[0].BelongsTo(Account{Name: "z", UID: 1000}))
}

// Rows that RootlessKit accepts and newuidmap does not, and the other way round.
func TestParseSubidsOfUnusualRows(t *testing.T) {
	t.Parallel()
	for row, want := range map[string]string{
		"my user:100000:65536":          "",
		`dom\u1:100000:65536`:           "",
		"müller:100000:65536":           "",
		"a:100000:65536\r":              "ends with a carriage return (CRLF line ends), which newuidmap does not accept",
		"a:100000:65536 ":               "has blanks at its beginning or end, which newuidmap does not accept",
		" a:100000:65536":               "has blanks at its beginning or end, which newuidmap does not accept",
		"a: 100000:65536":               "is not NAME:START:COUNT with decimal numbers",
		"a:100000:0":                    "has a count of 0",
		"a:4294967000:65536":            "has ids above 4294967294, the highest id of the kernel",
		"a:100000:99999999999999999999": "is not NAME:START:COUNT with decimal numbers",
		"a:9223372036854775807:1":       "has ids above 4294967294, the highest id of the kernel",
		"a:1:9223372036854775807":       "has ids above 4294967294, the highest id of the kernel",
	} {
		rows, bad := ParseSubids([]byte(row+"\n"), "F")
		if want == "" {
			assert.Equal(t, len(rows), 1, row)
			continue
		}
		assert.Equal(t, bad[0].Reason, want, "%q", row)
		assert.Equal(t, len(rows) == 1, bad[0].Blanks, row)
	}
}

func TestParseGetsubids(t *testing.T) {
	t.Parallel()
	got := ParseGetsubids([]byte("0: a 100000 65536\n1: a 300000 1\n2: a b 5 1\nError fetching ranges\n"), "getsubids a")
	assert.DeepEqual(t, got, []SubidRow{{"a", 100000, 65536, "getsubids a row 0"}, {"a", 300000, 1, "getsubids a row 1"}, {"a b", 5, 1, "getsubids a row 2"}})
}

func TestFreeSubids(t *testing.T) {
	t.Parallel()
	row := func(start, count int64) SubidRow { return SubidRow{Start: start, Count: count} }
	for _, tc := range []struct {
		rows  []SubidRow
		count int64
		want  int64
	}{
		{nil, 65536, 100000},
		{[]SubidRow{row(1, 100000)}, 65536, 100001},
		{[]SubidRow{row(165536, 65536), row(100000, 65536)}, 65536, 231072},
		{[]SubidRow{row(200000, 10)}, 100000, 100000},
		{[]SubidRow{row(199999, 10)}, 100000, 200009},
		{[]SubidRow{row(0, 600100000)}, 1, -1},
	} {
		assert.Equal(t, FreeSubids(tc.rows, tc.count, IDRange{subidsFrom, subidsTo}), tc.want)
	}
}

func TestInstallCommand(t *testing.T) {
	t.Parallel()
	programs := []string{"newuidmap", "newgidmap", "ip", "slirp4netns"}
	for release, want := range map[string]string{
		"ID=debian\n": "apt-get install -y iproute2 slirp4netns uidmap",
		"NAME=x\nID=linuxmint\nID_LIKE=\"ubuntu debian\"\n": "apt-get install -y iproute2 slirp4netns uidmap",
		"ID='fedora'\n": "dnf install -y iproute shadow-utils slirp4netns",
		"ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"": "zypper install -y iproute2 shadow slirp4netns",
		"ID=arch\n":   "pacman -S --needed iproute2 shadow slirp4netns",
		"ID=alpine\n": "apk add iproute2 shadow-uidmap slirp4netns",
		"ID=other\n":  "# install these programs with your package manager: newuidmap newgidmap ip slirp4netns",
		"":            "# install these programs with your package manager: newuidmap newgidmap ip slirp4netns",
	} {
		root := t.TempDir()
		if release != "" {
			write(t, root, "usr/lib/os-release", release)
		}
		assert.Equal(t, DetectDistro(root).InstallCommand(programs), want)
	}
}

func TestAppArmorProfile(t *testing.T) {
	t.Parallel()
	path, text, err := AppArmorProfile("/home/a b/bin/rootlessnode")
	assert.NilError(t, err)
	assert.Equal(t, path, "/etc/apparmor.d/home.a_b.bin.rootlessnode")
	for _, want := range []string{"abi <abi/4.0>,", `"/home/a b/bin/rootlessnode" flags=(unconfined) {`, "\n  userns,\n"} {
		assert.Assert(t, strings.Contains(text, want), text)
	}
}

func TestAppArmorProfileOfUnusualPaths(t *testing.T) {
	t.Parallel()
	for exe, want := range map[string]string{
		"/t/a*b/r":      `"/t/a\*b/r"`,
		"/t/[a]?{b,c}^": `"/t/\[a\]\?\{b,c\}\^"`,
		"/t/@{HOME}/r":  `"/t/@\{HOME\}/r"`,
		"/t/ä/r":        `"/t/ä/r"`,
	} {
		_, text, err := AppArmorProfile(exe)
		assert.NilError(t, err)
		assert.Assert(t, strings.Contains(text, " "+want+" flags=(unconfined) {\n"), text)
	}
	for _, exe := range []string{"/a\nb", `/a"b`, `/a\b`, "/a\x7f", "/a\xff"} {
		_, _, err := AppArmorProfile(exe)
		assert.ErrorContains(t, err, "cannot be expressed in an AppArmor profile")
	}
}

func TestQuote(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{"": "''", "/a/b-c_d.e": "/a/b-c_d.e", "a b": "'a b'", "it's": `'it'\''s'`, "$x": "'$x'"} {
		assert.Equal(t, Quote(in), want)
	}
}

func FuzzParsers(f *testing.F) {
	f.Add([]byte("a:100000:65536\n0: a 1 2\nroot:x:0:0:::\nID=debian\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		rows, _ := ParseSubids(b, "f")
		rows = append(rows, ParseGetsubids(b, "g")...)
		for _, r := range rows {
			if r.Start < 0 || r.Count < 0 || r.End() > maxID+1 {
				t.Fatalf("%+v", r)
			}
		}
		free := FreeSubids(rows, 1, IDRange{subidsFrom, subidsTo})
		for _, r := range rows {
			if free >= 0 && r.Overlaps(SubidRow{Start: free, Count: 1}) {
				t.Fatalf("%d is in %+v", free, r)
			}
		}
		findAccount(b, "a")
		familyOf(b)
	})
}

func TestFindProgram(t *testing.T) {
	t.Parallel()
	first, second := t.TempDir(), t.TempDir()
	assert.NilError(t, os.WriteFile(filepath.Join(first, "tool"), nil, 0o644)) // not executable
	assert.NilError(t, os.Mkdir(filepath.Join(first, "other"), 0o755))
	want := filepath.Join(second, "tool")
	assert.NilError(t, os.WriteFile(want, nil, 0o755))
	assert.Equal(t, FindProgram("tool", "relative", first, second), want)
	assert.Equal(t, FindProgram("other", first, second), "")
}
