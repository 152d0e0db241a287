package specfilter

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gotest.tools/v3/assert"
	"gotest.tools/v3/golden"
)

// hybrid returns the controllers that are missing on a host with hybrid cgroups, which has only hugetlb.
func hybrid() []string { return Missing([]string{"hugetlb"}) }

func TestSpecGolden(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		spec, host string
		drop       []string
		dropped    []string
	}{
		{"sandbox", "hybrid", hybrid(), []string{"cpu.shares"}},
		{"container", "hybrid", hybrid(), []string{"memory", "cpu.shares", "cpu.quota", "cpu.period", "cpu.cpus", "cpu.mems", "pids",
			"blockio", "rdma", "unified.memory.oom.group", "unified.memory.swap.max", "unified.cpu.weight", "unified.cpuset.cpus.partition", "unified.io.max"}},
		{"container", "no-cpuset", []string{"cpuset"}, []string{"cpu.cpus", "cpu.mems", "unified.cpuset.cpus.partition"}},
		{"container", "no-cpu", []string{"cpu"}, []string{"cpu.shares", "cpu.quota", "cpu.period", "unified.cpu.weight"}},
		{"container", "nothing", Missing(nil), []string{"memory", "cpu.shares", "cpu.quota", "cpu.period", "cpu.cpus", "cpu.mems", "pids",
			"blockio", "hugepagelimits", "rdma", "unified.memory.oom.group", "unified.memory.swap.max", "unified.cpu.weight",
			"unified.cpuset.cpus.partition", "unified.hugetlb.2MB.max", "unified.io.max"}},
	} {
		t.Run(tc.spec+"-"+tc.host, func(t *testing.T) {
			t.Parallel()
			in, err := os.ReadFile(filepath.Join("testdata", tc.spec+".json"))
			assert.NilError(t, err)
			out, dropped, err := Spec(in, tc.drop)
			assert.NilError(t, err)
			assert.DeepEqual(t, dropped, tc.dropped)
			var pretty bytes.Buffer
			assert.NilError(t, json.Indent(&pretty, out, "", " "))
			golden.Assert(t, pretty.String(), tc.spec+"-"+tc.host+".golden.json")
		})
	}
}

func TestSpecKeepsBytesWhenNothingIsDropped(t *testing.T) {
	t.Parallel()
	for _, in := range []string{
		`{}`, ` { "linux" : null } `, `{"linux":{"resources":null}}`, `{"linux":{"resources":{"cpu":{},"unified":null}}}`,
		`{"linux":{"resources":{"devices":[{"allow":false}],"network":{"classID":1}}}}`, `{"linux":{"resources":{"unified":{"cgroup.kill":"1","odd":"x"}}}}`,
		`{"process":{"resources":{"cpu":{"shares":2}}}}`,
	} {
		out, dropped, err := Spec([]byte(in), hybrid())
		assert.NilError(t, err)
		assert.Equal(t, string(out), in)
		assert.Equal(t, len(dropped), 0)
	}
	full, err := os.ReadFile("testdata/container.json")
	assert.NilError(t, err)
	out, _, err := Spec(full, nil)
	assert.NilError(t, err)
	assert.Equal(t, string(out), string(full))
}

// TestSpecSeesWhatRuncSees checks keys with another case and duplicate keys. encoding/json in runc ignores case and uses the last duplicate.
func TestSpecSeesWhatRuncSees(t *testing.T) {
	t.Parallel()
	out, _, err := Spec([]byte(`{"Linux":{"RESOURCES":{"CPU":{"Shares":2},"cpu":{"quota":1}}},"linux":{"resources":{"pids":{}}}}`), hybrid())
	assert.NilError(t, err)
	assert.Equal(t, string(out), `{"Linux":{"RESOURCES":{}},"linux":{"resources":{}}}`)
}

func TestSpecErrors(t *testing.T) {
	t.Parallel()
	for _, in := range []string{``, `[]`, `{`, `{"linux":{"resources":{"cpu":{]}}}`, `{} {}`, `{}}`, `{"a":1}x`} {
		_, _, err := Spec([]byte(in), hybrid())
		assert.ErrorContains(t, err, "parse OCI specification", "%q", in)
	}
}

func TestMissing(t *testing.T) {
	t.Parallel()
	assert.DeepEqual(t, Missing(strings.Fields("cpu cpuset io memory hugetlb pids rdma misc")), []string(nil))
	assert.DeepEqual(t, Missing([]string{"memory", "pids"}), []string{"cpu", "cpuset", "io", "hugetlb", "rdma"})
}

// FuzzSpec checks that the output is JSON, that a second run changes nothing, and that entries of available controllers are unchanged.
func FuzzSpec(f *testing.F) {
	for _, name := range []string{"sandbox", "container"} {
		b, err := os.ReadFile(filepath.Join("testdata", name+".json"))
		assert.NilError(f, err)
		f.Add(b, uint8(0b0111111))
	}
	f.Add([]byte(`{"linux":{"resources":{"cpu":{"shares":1,"x":2}}}}`), uint8(1))
	f.Add([]byte(`{}}`), uint8(63))
	f.Fuzz(func(t *testing.T, in []byte, mask uint8) {
		var drop []string
		for i, c := range strings.Fields(known) {
			if mask&(1<<i) != 0 {
				drop = append(drop, c)
			}
		}
		out, dropped, err := Spec(in, drop)
		if err != nil {
			return
		}
		assert.Assert(t, json.Valid(out))
		again, more, err := Spec(out, drop)
		assert.NilError(t, err)
		assert.Equal(t, len(more), 0, "%v", more)
		assert.Equal(t, string(again), string(out))
		if mask&0x7f == 0 {
			assert.Equal(t, len(dropped), 0)
			assert.Equal(t, string(out), string(in))
		}
		// Dropping the other controllers afterwards must find all their entries.
		rest := slices.DeleteFunc(strings.Fields(known), func(c string) bool { return slices.Contains(drop, c) })
		_, restOfIn, err := Spec(in, rest)
		assert.NilError(t, err)
		_, restOfOut, err := Spec(out, rest)
		assert.NilError(t, err)
		assert.DeepEqual(t, restOfIn, restOfOut)
	})
}
