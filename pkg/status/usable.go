package status

import (
	"slices"
	"strings"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

// Milestone is a point of a node's start for which a caller can wait.
type Milestone string

// Milestones.
const (
	// MilestoneNode is reached when all components are up and the Node object is Ready.
	MilestoneNode Milestone = "node"
	// MilestoneUsable is reached when, in addition, all essential conditions are true: the container runtime works, names of the
	// cluster resolve, and the cluster's data can be written. A node that is degraded for another reason is usable.
	MilestoneUsable Milestone = "usable"
	// MilestonePods is reached when, in addition, the pods that were ready at the end of the last run are ready again, and the
	// forwarded ports of their Services accept connections.
	MilestonePods Milestone = "pods"
)

// Milestones returns all milestones.
func Milestones() []Milestone { return []Milestone{MilestoneNode, MilestoneUsable, MilestonePods} }

// essential are the types of conditions without which the node cannot be used. A node has only those that apply to it.
var essential = []string{ConditionNodeReady, ConditionContainerRuntime, ConditionDatastore, ConditionClusterDNS, ConditionAddons}

// Reached reports whether the node has reached a milestone and is still there. Components that fail later do not matter as long as
// the conditions are true.
func (s *Status) Reached(m Milestone) bool {
	running := s.State == NodeStarting || s.State == NodeReady || s.State == NodeDegraded
	return running && (s.WasReady() || componentsUp(s.Components)) && nodeObjectReady(s.Conditions) && len(s.unmet(m)) == 0 &&
		(m != MilestonePods || s.Restored != nil && s.Restored.Done)
}

// Missing describes what keeps the node from a milestone, and how to fix it as far as that is known.
func (s *Status) Missing(m Milestone) (texts []string, hint errdefs.Hint) {
	for _, c := range s.Components {
		if !isUp(c) {
			texts = append(texts, describe(c))
		}
	}
	for _, c := range s.unmet(m) {
		texts = append(texts, describeCondition(c))
		hint = append(hint, c.Steps...)
	}
	if r := s.Restored; m == MilestonePods && r != nil && !r.Done {
		texts = append(texts, r.Text())
		hint = hint.Do(errdefs.Kubectl, "get", "pods", "-A")
	}
	return texts, hint
}

// Text describes what the node waits for.
func (r *Restored) Text() string {
	const text = "waiting for pods of the last run"
	if len(r.Waiting) == 0 { // they are not known yet
		return text
	}
	return text + ": " + strings.Join(r.Waiting, ", ")
}

// unmet returns the conditions of a milestone that are not true.
func (s *Status) unmet(m Milestone) (out []Condition) {
	for _, c := range s.Conditions {
		required := c.Type == ConditionNodeReady || m != MilestoneNode && slices.Contains(essential, c.Type)
		if required && !c.OK {
			out = append(out, c)
		}
	}
	return out
}
