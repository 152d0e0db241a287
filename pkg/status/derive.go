package status

import (
	"fmt"
	"slices"
	"strings"
)

// DeriveInput is all that decides a node's state.
type DeriveInput struct {
	Components []Component
	Conditions []Condition
	Ports      []Port
	// WasReady: the node has been ready before in this run.
	WasReady bool
	// Failure is why the node gave up; empty while it did not.
	Failure string
	// Stopping is why the node was told to stop; empty while it was not.
	Stopping string
	// Stopped: everything has ended.
	Stopped bool
}

// Derive makes the node's state from the states of its parts, and says why. It is the only place that does.
//
//   - ready needs the Node object to be Ready, every component ready (or done) and every promise kept;
//   - degraded needs the same once (WasReady), or the Node object Ready and all components up while a promise is broken;
//   - a component that was given up makes the node failed, whatever the others say;
//   - stopping, stopped and failed beat what the parts say.
func Derive(in DeriveInput) (State, string) {
	switch {
	case in.Stopped && in.Failure != "":
		return NodeFailed, in.Failure
	case in.Stopped:
		return NodeStopped, in.Stopping
	case in.Stopping != "":
		return NodeStopping, in.Stopping
	case in.Failure != "":
		return NodeFailed, in.Failure
	}
	if i := slices.IndexFunc(in.Components, func(c Component) bool { return c.State == Failed }); i >= 0 {
		return NodeFailed, describe(in.Components[i])
	}
	missing := missingParts(in)
	up := componentsUp(in.Components) && nodeObjectReady(in.Conditions)
	switch {
	case up && len(missing) == 0:
		return NodeReady, ""
	case up || in.WasReady:
		return NodeDegraded, strings.Join(missing, "; ")
	}
	return NodeStarting, startingReason(in)
}

func componentsUp(cs []Component) bool {
	return !slices.ContainsFunc(cs, func(c Component) bool { return !isUp(c) })
}

func isUp(c Component) bool { return c.State == Ready || c.State == Done }

func nodeObjectReady(cs []Condition) bool {
	return slices.ContainsFunc(cs, func(c Condition) bool { return c.Type == ConditionNodeReady && c.OK })
}

// missingParts lists everything promised that is not there, components first because they are the usual cause.
func missingParts(in DeriveInput) []string {
	var out []string
	for _, c := range in.Components {
		if !isUp(c) {
			out = append(out, describe(c))
		}
	}
	for _, c := range in.Conditions {
		if !c.OK {
			out = append(out, describeCondition(c))
		}
	}
	if !slices.ContainsFunc(in.Conditions, func(c Condition) bool { return c.Type == ConditionNodeReady }) {
		out = append(out, "the Node object has not been seen")
	}
	for _, p := range in.Ports {
		if p.State == PortFailed {
			out = append(out, fmt.Sprintf("port %s is not forwarded: %s", p.Address(), p.Error))
		}
	}
	return out
}

// startingReason names what the start waits for: what is in trouble first, then what is at work, then the Node object.
func startingReason(in DeriveInput) string {
	for _, want := range [][]ComponentState{{Backoff, Stopping, Stopped}, {Starting, Running}, {Waiting}} {
		for _, c := range in.Components {
			if slices.Contains(want, c.State) {
				return describe(c)
			}
		}
	}
	for _, c := range in.Conditions {
		if c.Type == ConditionNodeReady && !c.OK {
			return describeCondition(c)
		}
	}
	return "waiting for the Node object to be Ready"
}

func describe(c Component) string {
	s := fmt.Sprintf("%s is %s", c.Name, c.State)
	if c.State == Backoff {
		s = c.Name + " is backing off"
	}
	switch {
	case c.Reason != "":
		s += ": " + c.Reason
	case c.State == Waiting && len(c.WaitingFor) > 0:
		s += " for " + strings.Join(c.WaitingFor, ", ")
	}
	return s
}

func describeCondition(c Condition) string {
	s := c.Type + " is not met"
	if c.Type == ConditionNodeReady {
		s = "the Node object is not Ready"
	}
	switch {
	case c.Message != "":
		return s + ": " + c.Message
	case c.Reason != "":
		return s + ": " + c.Reason
	}
	return s
}

// Address writes the host's side of p as IP:PORT/PROTO.
func (p Port) Address() string { return fmt.Sprintf("%s:%d/%s", p.HostIP, p.HostPort, p.Proto) }
