package mountverify

import (
	"slices"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
)

// saw makes what every party saw: mounts[party] are those that see its mount besides itself.
func saw(mounts map[string][]string, adapt func(map[string]Result)) map[string]Result {
	all := map[string]Result{}
	for _, by := range Parties() {
		r := Result{Party: by, Sees: map[string]bool{}, Daemon: by == Node, Local: by == Node}
		for _, m := range Parties() {
			r.Sees[m] = m == by || slices.Contains(mounts[m], by)
		}
		all[by] = r
	}
	if adapt != nil {
		adapt(all)
	}
	return all
}

func change(party string, f func(*Result)) func(map[string]Result) {
	return func(all map[string]Result) { r := all[party]; f(&r); all[party] = r }
}

func TestVerdict(t *testing.T) {
	t.Parallel()
	inward, inner := []string{Node, Bidirectional, HostToContainer}, []string{Bidirectional, HostToContainer}
	outer := []string{Node, HostToContainer}
	hidden := map[string][]string{Host: inward, Node: inner, Bidirectional: outer}
	sharedHost, privateHost := hostMount{"/", "shared:1"}, hostMount{"/", ""}
	slave := func(all map[string]Result) {
		change(Node, func(r *Result) { r.UserNS, r.Propagation = true, "shared:5 master:1" })(all)
	}
	derived := func(propagation string) func(map[string]Result) {
		return func(all map[string]Result) {
			change(Node, func(r *Result) { r.UserNS, r.Propagation = true, propagation })(all)
			change(Host, func(r *Result) { r.Fault = "not tried" })(all)
		}
	}
	for _, tc := range []struct {
		name    string
		results map[string]Result
		host    hostMount
		want    string
		reasons []string
		hint    string
		notes   int
		leaks   []string
	}{
		{"hidden", saw(hidden, slave), sharedHost, "1 yes, 2 yes, 3 no", []string{"3: a rootless node's mounts never reach the host: its mounts are another user namespace's"}, "", 0, nil},
		{"visible", saw(map[string][]string{Host: inward, Node: append([]string{Host}, inner...), Bidirectional: append([]string{Host}, outer...)}, nil),
			sharedHost, "1 yes, 2 yes, 3 yes", nil, "", 0, nil},
		{"derived", saw(hidden, derived("shared:5 master:1")), sharedHost, "1 yes, 2 yes, 3 no",
			[]string{"3: a rootless node's mounts never reach the host: its mounts are another user namespace's"}, "", 1, nil},
		{"private host", saw(hidden, derived("shared:5")), privateHost, "1 no, 2 yes, 3 no",
			[]string{"1: the host's mount of / is private", "3: a rootless node's mounts never reach the host: its mounts are another user namespace's"},
			"mount --make-rshared /    # as root of the host; then start the node anew", 1, nil},
		{"cut off", saw(map[string][]string{Node: inner, Bidirectional: outer}, change(Node, func(r *Result) { r.Propagation = "shared:5" })), sharedHost,
			"1 no, 2 yes, 3 no", []string{"1: the node's mounts receive nothing from the host's mount of /", "3: the kubelet's and the volumes' mounts are hidden from the host"},
			"# mounts.propagation: rslave, and start the node anew", 0, nil},
		{"not shared inside", saw(map[string][]string{Host: inward}, change(Node, func(r *Result) { r.Propagation = "master:1" })), sharedHost,
			"1 yes, 2 no, 3 no", []string{"2: the mounts where the kubelet is are not shared", "3: the kubelet's and the volumes' mounts are hidden from the host"},
			"mount --make-rshared /    # where the kubelet and the runtime are", 0, nil},
		{"a leak", saw(map[string][]string{Host: append([]string{None}, inward...), Node: inner, Bidirectional: outer, None: {Node}}, slave), sharedHost,
			"1 yes, 2 yes, 3 no", []string{"3: a rootless node's mounts never reach the host: its mounts are another user namespace's"}, "", 0,
			[]string{"the mount of host is seen by none", "the mount of none is seen by node"}},
		{"elsewhere", saw(hidden, func(all map[string]Result) {
			change(Node, func(r *Result) { r.UserNS, r.Local = true, false })(all)
			change(Host, func(r *Result) { r.Fault, r.Sees = "not tried", nil })(all)
		}), hostMount{}, "1 no, 2 yes, 3 no", []string{"3: a rootless node's mounts never reach the host: its mounts are another user namespace's"}, "", 1, nil},
		{"refused", saw(hidden, change(Bidirectional, func(r *Result) { r.Fault = "permission denied" })), sharedHost, "1 yes, 2 no, 3 no", []string{
			"2: the mounts where the kubelet is are not shared", "3: the kubelet's and the volumes' mounts are hidden from the host",
		}, "mount --make-rshared /    # where the kubelet and the runtime are", 1, nil},
	} {
		v := verdict("n", tc.results, tc.host)
		assert.Check(t, is.Equal(v.Text(), tc.want), tc.name)
		assert.Check(t, is.DeepEqual(v.Reasons, tc.reasons), tc.name)
		assert.Check(t, is.Equal(v.Hint, tc.hint), tc.name)
		assert.Check(t, is.Len(v.Notes, tc.notes), "%s: %v", tc.name, v.Notes)
		assert.Check(t, is.DeepEqual(v.Leaks, tc.leaks), tc.name)
	}
}
