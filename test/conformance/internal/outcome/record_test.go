package outcome

import (
	"testing"

	"gotest.tools/v3/assert"
)

func TestRecordRoundTrip(t *testing.T) {
	t.Parallel()
	run := sample("passed [sig-node] a  b ", "failed \"q\"", "skipped c\nd\te", "flaked ü", "passed \xff", "passed # x")
	data, err := Encode(run)
	assert.NilError(t, err)
	assert.Equal(t, string(data), recordHeader+
		"failed\t\"\\\"q\\\"\"\n"+
		"passed\t# x\n"+
		"passed\t[sig-node] a  b \n"+
		"skipped\t\"c\\nd\\te\"\n"+
		"flaked\tü\n"+
		"passed\t\"\\xff\"\n")
	back, err := Decode(data)
	assert.NilError(t, err)
	assert.DeepEqual(t, outcomes(back), outcomes(run))
	assert.Equal(t, len(Diff(run, back)), 0)
}

func TestEncodeRefuses(t *testing.T) {
	t.Parallel()
	_, err := Encode(Run{Specs: []Spec{{Name: "a"}, {Name: "b", State: Passed}, {Name: "b", State: Failed}, {State: Passed}}})
	for _, e := range []string{`"a": unknown state ""`, `"b": more than once`, "no name"} {
		assert.ErrorContains(t, err, e)
	}
}

func TestDecodeNamesEveryFault(t *testing.T) {
	t.Parallel()
	_, err := Decode([]byte("# x\npassed a\nmelted\tb\npassed\tc\n\nfailed\tc\npassed\t\npassed\td\r\npassed\t\"e\nabsent\tf\n"))
	for _, e := range []string{
		"line 2: no tab", `line 3: unknown state "melted"`, `line 6: spec "c" is already on line 4`, "line 7: no spec",
		"line 8: spec \"d\\r\" is not quoted correctly", "line 9: ", `line 10: unknown state "absent"`,
	} {
		assert.ErrorContains(t, err, e)
	}
	run, err := Decode(nil)
	assert.NilError(t, err)
	assert.Equal(t, len(run.Specs), 0)
}

func TestDiff(t *testing.T) {
	t.Parallel()
	got := Diff(sample("passed a", "failed b", "passed c", "skipped e"), sample("flaked a", "passed b", "failed d", "skipped e"))
	assert.DeepEqual(t, got, []Change{
		{"a", Passed, Flaked}, {"b", Failed, Passed}, {"c", Passed, Absent}, {"d", Absent, Failed},
	})
	assert.Equal(t, len(Diff(Run{}, Run{})), 0)
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(recordHeader + "passed\ta\nflaked\t\"b\\n\"\n"))
	f.Add([]byte("passed\t`a`\nfailed\t\"\\xff\"\n"))
	f.Add([]byte("passed\ta\r\n\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		run, err := Decode(data)
		if err != nil {
			return
		}
		out, err := Encode(run)
		assert.NilError(t, err)
		back, err := Decode(out)
		assert.NilError(t, err)
		assert.DeepEqual(t, back, run)
	})
}
