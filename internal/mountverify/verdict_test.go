package mountverify

import (
	"slices"
	"testing"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
)

// saw returns the results of all parties. mounts[party] lists the other parties that see its mount.
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
		{"hidden", saw(hidden, slave), sharedHost, "1 yes, 2 yes, 3 no", []string{"3: mounts of a rootless node are never visible on the host, because they are in another user namespace"}, "", 0, nil},
		{"visible", saw(map[string][]string{Host: inward, Node: append([]string{Host}, inner...), Bidirectional: append([]string{Host}, outer...)}, nil),
			sharedHost, "1 yes, 2 yes, 3 yes", nil, "", 0, nil},
		{"derived", saw(hidden, derived("shared:5 master:1")), sharedHost, "1 yes, 2 yes, 3 no",
			[]string{"3: mounts of a rootless node are never visible on the host, because they are in another user namespace"}, "", 1, nil},
		{"private host", saw(hidden, derived("shared:5")), privateHost, "1 no, 2 yes, 3 no",
			[]string{"1: the host's mount of / is private", "3: mounts of a rootless node are never visible on the host, because they are in another user namespace"},
			"mount --make-rshared /    # as root of the host; then restart the node", 1, nil},
		{"cut off", saw(map[string][]string{Node: inner, Bidirectional: outer}, change(Node, func(r *Result) { r.Propagation = "shared:5" })), sharedHost,
			"1 no, 2 yes, 3 no", []string{"1: the node's mounts do not receive mounts from the host's mount of /", "3: mounts of the kubelet and the volumes are not visible on the host"},
			"# set mounts.propagation: rslave, and restart the node", 0, nil},
		{"not shared inside", saw(map[string][]string{Host: inward}, change(Node, func(r *Result) { r.Propagation = "master:1" })), sharedHost,
			"1 yes, 2 no, 3 no", []string{"2: the mounts in the kubelet's mount namespace are not shared", "3: mounts of the kubelet and the volumes are not visible on the host"},
			"mount --make-rshared /    # in the mount namespace of the kubelet and the runtime", 0, nil},
		{"a leak", saw(map[string][]string{Host: append([]string{None}, inward...), Node: inner, Bidirectional: outer, None: {Node}}, slave), sharedHost,
			"1 yes, 2 yes, 3 no", []string{"3: mounts of a rootless node are never visible on the host, because they are in another user namespace"}, "", 0,
			[]string{"the mount of host is visible to none", "the mount of none is visible to node"}},
		{"elsewhere", saw(hidden, func(all map[string]Result) {
			change(Node, func(r *Result) { r.UserNS, r.Local = true, false })(all)
			change(Host, func(r *Result) { r.Fault, r.Sees = "not tried", nil })(all)
		}), hostMount{}, "1 no, 2 yes, 3 no", []string{"3: mounts of a rootless node are never visible on the host, because they are in another user namespace"}, "", 1, nil},
		{"refused", saw(hidden, change(Bidirectional, func(r *Result) { r.Fault = "permission denied" })), sharedHost, "1 yes, 2 no, 3 no", []string{
			"2: the mounts in the kubelet's mount namespace are not shared", "3: mounts of the kubelet and the volumes are not visible on the host",
		}, "mount --make-rshared /    # in the mount namespace of the kubelet and the runtime", 1, nil},
	} {
		v := verdict("n", tc.results, tc.host)
		assert.Check(t, is.Equal(v.Text(), tc.want), tc.name)
		assert.Check(t, is.DeepEqual(v.Reasons, tc.reasons), tc.name)
		assert.Check(t, is.Equal(v.Hint, tc.hint), tc.name)
		assert.Check(t, is.Len(v.Notes, tc.notes), "%s: %v", tc.name, v.Notes)
		assert.Check(t, is.DeepEqual(v.Leaks, tc.leaks), tc.name)
	}
}
