package outcome

import (
	"strings"
	"testing"

	"gotest.tools/v3/assert"
)

const goodList = `# why
---
expectations:
- spec: "[sig-node] a: b"
  kind: user-namespace
  reason: mknod
  link: https://man7.org/x
- spec: c
  kind: hybrid-cgroup
  reason: no memory controller
flakes:
- spec: c
  reason: slow disk
`

func TestParseExpectations(t *testing.T) {
	t.Parallel()
	e, err := ParseExpectations([]byte(goodList))
	assert.NilError(t, err)
	assert.DeepEqual(t, e, Expectations{
		Failing: []Expectation{
			{Spec: "[sig-node] a: b", Kind: UserNamespace, Reason: "mknod", Link: "https://man7.org/x"},
			{Spec: "c", Kind: HybridCgroup, Reason: "no memory controller"},
		},
		Flakes: []Flake{{Spec: "c", Reason: "slow disk"}},
	})
	for _, empty := range []string{"", "# nothing\n", "expectations:\nflakes: []\n"} {
		e, err := ParseExpectations([]byte(empty))
		assert.NilError(t, err)
		assert.Equal(t, len(e.Failing)+len(e.Flakes), 0)
	}
}

func TestParseExpectationsFaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, in string
		errs     []string
	}{
		{"unknown keys", "expectations:\n- spec: a\n  cause: x\n- spec: b\n  why: x\n", []string{
			`expectations[0] "a": json: unknown field "cause"`, `expectations[0] "a": missing reason`,
			`expectations[1]`, `unknown field "why"`,
		}},
		{"unknown list", "expected: []\n", []string{`unknown field "expected"`}},
		{"entry of another type", "flakes: [x, {spec: [y]}]\n", []string{"flakes[0]", "flakes[1]"}},
		{"key twice", "flakes: []\nflakes: []\n", []string{"flakes"}},
		{"no YAML", "\t{", []string{"parse expectations"}},
		{"a list", "- a\n", []string{"cannot unmarshal"}},
		{"second document", goodList + "---\nflakes: []\n", []string{"more than one YAML document"}},
		{
			"all together", `
expectations:
- {spec: a, kind: image, reason: x}
- {spec: a, kind: images, reason: " "}
- {kind: user-namespace, reason: x}
- {spec: d, kind: ours, reason: x, link: "javascript:x"}
-
flakes:
- {spec: f, reason: x}
- {spec: f}
`, []string{
				`expectations[1] "a": already listed at index 0`,
				`expectations[1] "a": unknown kind "images"`,
				`expectations[1] "a": missing reason`,
				`expectations[2] "": missing spec`,
				`expectations[2] "": missing link`,
				`expectations[3] "d": link "javascript:x" is not an https URL`,
				`expectations[4] "": unknown kind ""`,
				`flakes[1] "f": already listed`,
				`flakes[1] "f": missing reason`,
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, err := ParseExpectations([]byte(c.in))
			for _, e := range c.errs {
				assert.ErrorContains(t, err, e)
			}
		})
	}
}

func FuzzParseExpectations(f *testing.F) {
	f.Add([]byte(goodList))
	f.Add([]byte("expectations: [null]\n"))
	f.Add([]byte("flakes: {a: 1}\n...\n---\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := ParseExpectations(data)
		if err != nil {
			return
		}
		for _, x := range e.Failing {
			assert.Assert(t, x.Kind.meaning() != "" && strings.TrimSpace(x.Spec) != "" && strings.TrimSpace(x.Reason) != "")
		}
	})
}
