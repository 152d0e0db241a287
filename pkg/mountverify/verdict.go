package mountverify

import (
	"fmt"
	"slices"
	"strings"

	"github.com/rootlessnode/rootlessnode/pkg/mountns"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// Cell answers whether one party sees the mount of another.
type Cell string

// Cells. Own is a party's own mount, Unknown one that was not made, or not looked for.
const (
	Seen    Cell = "yes"
	Unseen  Cell = "no"
	Own     Cell = "own"
	Unknown Cell = "?"
)

// Row is who sees the mount of one party.
type Row struct {
	Mount string          `json:"mount"`
	SeeIt map[string]Cell `json:"seenBy"`
}

// Verdict is what a trial found.
type Verdict struct {
	Node       string             `json:"node"`
	Rows       []Row              `json:"matrix"`
	Guarantees mountns.Guarantees `json:"guarantees"`
	// Derived: nobody could mount as the host, so (1) is read from the propagation of the mounts on both sides, or, with
	// none to be read, left false.
	Derived bool `json:"derived"`
	// Reasons say why (1), (2) or (3) does not hold, and begin with its number; Hint is what to do about them.
	Reasons []string `json:"reasons,omitempty"`
	Hint    string   `json:"hint,omitempty"`
	// Leaks are mounts that are seen where they must not be: those of volumes that do not propagate.
	Leaks []string `json:"leaks,omitempty"`
	// Notes are what else should be known.
	Notes []string `json:"notes,omitempty"`
}

// Text is the three answers in one line: "1 yes, 2 yes, 3 no".
func (v *Verdict) Text() string {
	g := v.Guarantees
	return (&status.Mounts{HostToNode: g.HostToInside, Shared: g.Inside, NodeToHost: g.InsideToHost}).Text()
}

// hostMount is the host's mount of the trial's directory, as evaluate needs it.
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

// verdict is pure.
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
		v.Notes = append(v.Notes, "no process named kubelet: process 1 of the node stands for it")
	}
	return v
}

func derivedNote(local bool) string {
	if local {
		return "1 is read from the propagation of the mounts on both sides: only root can mount on the host"
	}
	return "1 is not known: the host of this rootless node is another machine; run this there"
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
		case !n.Local && v.Derived: // it is in the notes
		case !n.Local:
			v.Reasons = append(v.Reasons, "1: what the host mounts does not reach the kubelet and the volumes")
		case hostPrivate:
			v.Reasons = append(v.Reasons, fmt.Sprintf("1: the host's mount of %s is private", h.point))
			hints = append(hints, fmt.Sprintf("mount --make-rshared %s    # as root of the host; then start the node anew", h.point))
		default:
			v.Reasons = append(v.Reasons, fmt.Sprintf("1: the node's mounts receive nothing from the host's mount of %s", h.point))
			hints = append(hints, "# mounts.propagation: rslave, and start the node anew")
		}
	}
	if !v.Guarantees.Inside {
		why := "a volume and the kubelet do not see one another's mounts"
		if !strings.Contains(n.Propagation, "shared:") {
			why = "the mounts where the kubelet is are not shared"
			hints = append(hints, "mount --make-rshared /    # where the kubelet and the runtime are")
		}
		v.Reasons = append(v.Reasons, "2: "+why)
	}
	if !v.Guarantees.InsideToHost {
		why := "the kubelet's and the volumes' mounts are hidden from the host"
		if n.UserNS {
			why = "a rootless node's mounts never reach the host: its mounts are another user namespace's"
		}
		v.Reasons = append(v.Reasons, "3: "+why)
	}
	v.Hint = strings.Join(hints, "\n")
}

// leaks are mounts of volumes without propagation to the host that others see, and mounts that a volume without any sees.
func leaks(cells map[[2]string]Cell) []string {
	var found []string
	for _, mount := range Parties() {
		for _, by := range Parties() {
			must := mount == None || mount == HostToContainer || by == None
			if must && cells[[2]string{mount, by}] == Seen {
				found = append(found, fmt.Sprintf("the mount of %s is seen by %s", mount, by))
			}
		}
	}
	return found
}
