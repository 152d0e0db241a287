package status

import (
	"fmt"
	"slices"
	"strings"
)

// DeriveInput is the input of Derive: the facts that determine a node's state.
type DeriveInput struct {
	Components []Component
	Conditions []Condition
	Ports      []Port
	// WasReady is set if the node was ready before in this run.
	WasReady bool
	// Failure is the reason for which the node failed; empty if it has not failed.
	Failure string
	// Stopping is the reason for which the node is being stopped; empty if it is not.
	Stopping string
	// Stopped is set after all components have ended.
	Stopped bool
}

// Derive returns the node's state and the reason for it. No other function determines the state.
//
//   - stopping, stopped and failed take precedence over the states of components, conditions and ports.
//   - The node is failed if a component has failed permanently.
//   - The node is ready if the Node object is Ready, every component is ready (or done), every condition is true and no port has
//     failed.
//   - The node is degraded if that is not so, but it was ready before (WasReady), or the Node object is Ready, all components are up
//     and no condition is pending.
//   - Otherwise the node is starting.
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
	unmet := unmetRequirements(in)
	up := componentsUp(in.Components) && nodeObjectReady(in.Conditions)
	switch {
	case up && len(unmet) == 0:
		return NodeReady, ""
	case up && !slices.ContainsFunc(in.Conditions, isPending) || in.WasReady:
		return NodeDegraded, strings.Join(unmet, "; ")
	}
	return NodeStarting, startingReason(in)
}

func componentsUp(cs []Component) bool {
	return !slices.ContainsFunc(cs, func(c Component) bool { return !isUp(c) })
}

func isUp(c Component) bool { return c.State == Ready || c.State == Done }

func isPending(c Condition) bool { return !c.OK && c.Pending }

func nodeObjectReady(cs []Condition) bool {
	return slices.ContainsFunc(cs, func(c Condition) bool { return c.Type == ConditionNodeReady && c.OK })
}

// unmetRequirements describes everything that keeps the node from being ready, components first because they are the usual cause.
func unmetRequirements(in DeriveInput) []string {
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

// startingReason returns the reason for which the node is still starting: first a component in backoff or stopped, then one that is
// starting, then one that waits, then the Node object, then a pending condition.
func startingReason(in DeriveInput) string {
	for _, states := range [][]ComponentState{{Backoff, Stopping, Stopped}, {Starting, Running}, {Waiting}} {
		for _, c := range in.Components {
			if slices.Contains(states, c.State) {
				return describe(c)
			}
		}
	}
	for _, waits := range []func(Condition) bool{func(c Condition) bool { return c.Type == ConditionNodeReady && !c.OK }, isPending} {
		if i := slices.IndexFunc(in.Conditions, waits); i >= 0 {
			return describeCondition(in.Conditions[i])
		}
	}
	return "waiting for the Node object to be Ready"
}

// Describe describes the state of the component and the reason for it.
func (c *Component) Describe() string { return describe(*c) }

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
	switch {
	case c.Type == ConditionNodeReady:
		s = "the Node object is not Ready"
	case c.Pending:
		s = "waiting for " + c.Type
	}
	switch {
	case c.Message != "":
		return s + ": " + c.Message
	case c.Reason != "":
		return s + ": " + c.Reason
	}
	return s
}

// Address returns the host side of p as IP:PORT/PROTO.
func (p Port) Address() string { return fmt.Sprintf("%s:%d/%s", p.HostIP, p.HostPort, p.Proto) }
