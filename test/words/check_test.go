package main

import (
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, file, text string
		want             []string
	}{
		{"Go comment", "a/x.go", "package a\n\n// f tells\n// whether it works.\nfunc f() {}\n",
			[]string{`a/x.go:3: "tells whether": write "reports whether"`}},
		{"Go string", "a/x.go", "package a\n\nconst c = \"x\\nnobody listens\"\n",
			[]string{`a/x.go:3: "nobody": write "no process", "no user" or the missing subject`}},
		{"second line of a raw string", "a/x.go", "package a\n\nconst c = `x\nmade anew`\n",
			[]string{`a/x.go:4: "anew": write "again" or "from scratch"`}},
		{"Markdown", "docs/x.md", "# Title\n\nThe pods are of\nours, *mended*.\n",
			[]string{`docs/x.md:4: "ours": write "rootlessnode's", "the node's", or nothing`, `docs/x.md:4: "mended": write "fix" or "repair"`}},
		{"shell comment", "hack/x.sh", "#!/bin/sh\nx=1 # done\n# set by\n# hand\n",
			[]string{`hack/x.sh:3: "by hand": write "manually"`}},
		{"shell message", "hack/x.sh", "#!/bin/sh\nsay \"it goes on\"\n", []string{`hack/x.sh:2: "goes on": write "continues"`}},
		{"script without extension", ".ci/run", "#!/bin/sh\n# as ever\n", []string{`.ci/run:2: "as ever": write "as before"`}},
		{"YAML", "x.yaml", "key: anew # anew\n", []string{`x.yaml:1: "anew": write "again" or "from scratch"`}},
		{"Makefile", "Makefile", "x: ## make it anew\n", []string{`Makefile:1: "anew": write "again" or "from scratch"`}},
		{"subject", "a/x.go", "package a\n\n// Done. What is left stays.\n",
			[]string{`a/x.go:3: "What is left stays.": write the subject: "X things", "the X ones"`}},
		{"question", "docs/x.md", "What is a node? Who starts it?\n", nil},
		{"allowed context", "a/x.go", "package a\n\n// There is no file, there is none; it is no longer left alone.\nconst c = \"nobody\"\n", nil},
		{"marker", "a/x.go", "package a\n\nconst c = \"made anew\" // words:allow quoted from upstream\n", nil},
		{"marker without a reason", "a/x.go", "package a\n\nconst c = \"made anew\" // words:allow\n",
			[]string{`a/x.go:3: "anew": write "again" or "from scratch"`}},
		{"import path and name", "a/x.go", "package a\n\nimport _ \"example.com/stray\"\n\nconst c = \"stray\"\n", nil},
		{"test data", "a/testdata/x.md", "anew\n", nil},
		{"other file", "x.txt", "anew\n", nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			found, err := Check(test.file, []byte(test.text))
			assert.NilError(t, err)
			var got []string
			for _, f := range found {
				got = append(got, f.String())
			}
			assert.Check(t, is.DeepEqual(got, test.want))
		})
	}
}

func TestCheckReportsSyntaxErrors(t *testing.T) {
	t.Parallel()
	_, err := Check("x.go", []byte("package"))
	assert.Assert(t, err != nil)
}
