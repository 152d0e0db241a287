package datadir

import (
	"testing"

	"github.com/rootless-containers/rootlesskit/v3/pkg/parent/idtools"
	"gotest.tools/v3/assert"
	"gotest.tools/v3/assert/cmp"
)

func of(subuids ...IDRange) IDs {
	return IDs{UID: 1000, GID: 1000, Subuids: subuids, Subgids: []IDRange{{100000, 65536}}}
}

// TestRangesAreTheMap checks that ranges returns the ids that RootlessKit maps.
func TestRangesAreTheMap(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		rows []idtools.SubIDRange
		want []IDRange
	}{
		{[]idtools.SubIDRange{{Start: 100000, Length: 65536}}, []IDRange{{100000, 65536}}},
		{[]idtools.SubIDRange{{Start: 100000, Length: 10}, {Start: 100010, Length: 5}}, []IDRange{{100000, 15}}},
		{[]idtools.SubIDRange{{Start: 100010, Length: 5}, {Start: 100000, Length: 10}}, []IDRange{{100010, 5}, {100000, 10}}},
		{[]idtools.SubIDRange{{Start: 990, Length: 20}}, []IDRange{{990, 10}, {1001, 9}}},
		{[]idtools.SubIDRange{{Start: 1000, Length: 2}, {Start: 5000, Length: 0}}, []IDRange{{1001, 1}}},
	} {
		assert.DeepEqual(t, ranges(tc.rows, 1000), tc.want)
	}
}

func TestChanges(t *testing.T) {
	t.Parallel()
	a, b := IDRange{100000, 65536}, IDRange{200000, 65536}
	for name, tc := range map[string]struct {
		was, now IDs
		text     string
	}{
		"same":                 {of(a), of(a), ""},
		"one more after it":    {of(a), of(a, b), ""},
		"longer":               {of(a), of(IDRange{100000, 70000}), ""},
		"one row split in two": {of(a), of(IDRange{100000, 536}, IDRange{100536, 65000}), ""},
		"two rows joined":      {of(IDRange{100000, 536}, IDRange{100536, 65000}), of(a), ""},
		"another":              {of(a), of(b), "the subordinate uids were 100000-165535 and are now 200000-265535"},
		"none":                 {of(a), of(), "the subordinate uids were 100000-165535 and are now none"},
		"one more before it":   {of(a), of(b, a), "the subordinate uids were 100000-165535 and are now 200000-265535 100000-165535"},
		"another order":        {of(a, b), of(b, a), "the subordinate uids were 100000-165535 200000-265535 and are now 200000-265535 100000-165535 (another order maps them to other ids)"},
		"shorter":              {of(a), of(IDRange{100000, 65535}), "the subordinate uids were 100000-165535 and are now 100000-165534"},
		"the second removed":   {of(a, b), of(a), "the subordinate uids were 100000-165535 200000-265535 and are now 100000-165535"},
	} {
		changes := tc.was.Changes(tc.now)
		if tc.text == "" {
			assert.Assert(t, cmp.Len(changes, 0), name)
			continue
		}
		assert.Assert(t, cmp.Len(changes, 1), name)
		assert.Equal(t, changes[0].String(), tc.text, name)
	}
	moved := of(a)
	moved.GID = 100
	changes := of(a).Changes(moved)
	assert.Assert(t, cmp.Len(changes, 1))
	assert.Equal(t, changes[0].String(), "the account's gid was 1000 and is now 100")
	assert.DeepEqual(t, Restore(changes, "dev")[1:], []string{"usermod --gid 1000 dev"})
}

// TestRestoreTheOrder checks that all rows are deleted before the former ones are added, because usermod appends rows.
func TestRestoreTheOrder(t *testing.T) {
	t.Parallel()
	a, b := IDRange{100000, 65536}, IDRange{200000, 65536}
	assert.DeepEqual(t, Restore(of(a, b).Changes(of(b, a)), "dev")[1:], []string{
		"# row of /etc/subuid: dev:100000:65536", "# row of /etc/subuid: dev:200000:65536",
		"usermod --del-subuids 200000-265535 dev", "usermod --del-subuids 100000-165535 dev",
		"usermod --add-subuids 100000-165535 dev", "usermod --add-subuids 200000-265535 dev",
	})
	assert.DeepEqual(t, Restore(of(a).Changes(of()), "my user")[2:], []string{"usermod --add-subuids 100000-165535 'my user'"})
}
