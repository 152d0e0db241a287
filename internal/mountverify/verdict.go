package mountverify

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rootlessnode/rootlessnode/pkg/mountns"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// Cell is whether one party sees the mount of another.
type Cell string

// Cells. Own is for a party's own mount, Unknown for a mount that was not created or not checked.
const (
	Seen    Cell = "yes"
	Unseen  Cell = "no"
	Own     Cell = "own"
	Unknown Cell = "?"
)

// Row lists which parties see the mount of one party.
type Row struct {
	Mount string          `json:"mount"`
	SeeIt map[string]Cell `json:"seenBy"`
}

// Verdict is the result of a test.
type Verdict struct {
	Node       string             `json:"node"`
	Rows       []Row              `json:"matrix"`
	Guarantees mountns.Guarantees `json:"guarantees"`
	// Derived: no process could mount on the host, so (1) is derived from the propagation of the mounts on both sides. If
	// that is unknown, (1) is false.
	Derived bool `json:"derived"`
	// Reasons are the reasons why (1), (2) or (3) does not hold. Each begins with its number. Hint is how to fix them.
	Reasons []string `json:"reasons,omitempty"`
	Hint    string   `json:"hint,omitempty"`
	// Leaks are mounts that are visible where they must not be: those of volumes without propagation.
	Leaks []string `json:"leaks,omitempty"`
	// Notes are further notes for the user.
	Notes []string `json:"notes,omitempty"`
}

// Text returns the three results in one line, for example "1 yes, 2 yes, 3 no".
func (v *Verdict) Text() string {
	g := v.Guarantees
	return (&status.Mounts{HostToNode: g.HostToInside, Shared: g.Inside, NodeToHost: g.InsideToHost}).Text()
}

// hostMount is the host's mount of the test directory.
type hostMount struct{ point, propagation string }

func evaluate(node, dir string, results map[string]Result) (*Verdict, error) {
	var h hostMount
	if results[Node].Local {
		var err error
		if h.point, h.propagation, err = mountns.MountOf(dir); err != nil {
			return nil, err
		}
	}
	return verdict(node, results, h), nil
}

// verdict evaluates the results. It is pure.
func verdict(node string, results map[string]Result, h hostMount) *Verdict {
	v := &Verdict{Node: node}
	cells := map[[2]string]Cell{}
	for _, mount := range Parties() {
		row := Row{mount, map[string]Cell{}}
		for _, by := range Parties() {
			c := cell(results, mount, by)
			row.SeeIt[by], cells[[2]string{mount, by}] = c, c
		}
		v.Rows = append(v.Rows, row)
	}
	seen := func(mount string, by ...string) bool {
		return !slices.ContainsFunc(by, func(b string) bool { return cells[[2]string{mount, b}] != Seen })
	}
	n := results[Node]
	g, hostPrivate := mountns.DeriveGuarantees(h.propagation, n.Propagation)
	v.Derived = results[Host].Fault != "" || results[Host].Sees == nil
	v.Guarantees = mountns.Guarantees{
		HostToInside: seen(Host, Node, HostToContainer, Bidirectional),
		Inside:       seen(Bidirectional, Node, HostToContainer) && seen(Node, HostToContainer, Bidirectional),
		InsideToHost: seen(Bidirectional, Host) && seen(Node, Host),
	}
	if v.Derived {
		v.Guarantees.HostToInside = n.Local && g.HostToInside
		v.Notes = append(v.Notes, derivedNote(n.Local))
	}
	v.reasons(n, h, hostPrivate)
	v.Leaks = leaks(cells)
	for _, p := range Parties() {
		if f := results[p].Fault; f != "" && p != Host {
			v.Notes = append(v.Notes, p+" did not mount: "+f)
		}
	}
	if !n.Daemon {
		v.Notes = append(v.Notes, "no process named kubelet was found; process 1 of the node is used instead")
	}
	return v
}

func derivedNote(local bool) string {
	if local {
		return "1 is derived from the propagation of the mounts on both sides, because only root can mount on the host"
	}
	return "1 is unknown, because the host of this rootless node is another machine; run the command there"
}

func cell(results map[string]Result, mount, by string) Cell {
	m, b := results[mount], results[by]
	switch {
	case m.Fault != "" || b.Sees == nil:
		return Unknown
	case mount == by:
		return Own
	case b.Sees[mount]:
		return Seen
	}
	return Unseen
}

func (v *Verdict) reasons(n Result, h hostMount, hostPrivate bool) {
	var hints []string
	if !v.Guarantees.HostToInside {
		switch {
		case !n.Local && v.Derived: // a note contains the reason
		case !n.Local:
			v.Reasons = append(v.Reasons, "1: mounts of the host are not visible to the kubelet and the volumes")
		case hostPrivate:
			v.Reasons = append(v.Reasons, fmt.Sprintf("1: the host's mount of %s is private", h.point))
			hints = append(hints, fmt.Sprintf("mount --make-rshared %s    # as root of the host; then restart the node", h.point))
		default:
			v.Reasons = append(v.Reasons, fmt.Sprintf("1: the node's mounts do not receive mounts from the host's mount of %s", h.point))
			hints = append(hints, "# set mounts.propagation: rslave, and restart the node")
		}
	}
	if !v.Guarantees.Inside {
		why := "a volume and the kubelet do not see each other's mounts"
		if !strings.Contains(n.Propagation, "shared:") {
			why = "the mounts in the kubelet's mount namespace are not shared"
			hints = append(hints, "mount --make-rshared /    # in the mount namespace of the kubelet and the runtime")
		}
		v.Reasons = append(v.Reasons, "2: "+why)
	}
	if !v.Guarantees.InsideToHost {
		why := "mounts of the kubelet and the volumes are not visible on the host"
		if n.UserNS {
			why = "mounts of a rootless node are never visible on the host, because they are in another user namespace"
		}
		v.Reasons = append(v.Reasons, "3: "+why)
	}
	v.Hint = strings.Join(hints, "\n")
}

// leaks returns the mounts of volumes without propagation to the host that are visible elsewhere, and the mounts that are
// visible in a volume without propagation.
func leaks(cells map[[2]string]Cell) []string {
	var found []string
	for _, mount := range Parties() {
		for _, by := range Parties() {
			hidden := mount == None || mount == HostToContainer || by == None
			if hidden && cells[[2]string{mount, by}] == Seen {
				found = append(found, fmt.Sprintf("the mount of %s is visible to %s", mount, by))
			}
		}
	}
	return found
}
