package supervisor

import (
	"fmt"
	"strings"
	"time"
)

// State is the state of a unit. The package comment shows the transitions.
type State string

const (
	// Waiting: at least one need is not met.
	Waiting State = "waiting"
	// Starting: Prepare is running or the process is being created.
	Starting State = "starting"
	// Running: it runs, but is not known to be usable yet.
	Running State = "running"
	// Ready: it is usable.
	Ready State = "ready"
	// BackingOff: it failed and is started again after a delay.
	BackingOff State = "backoff"
	// Stopping: it is being stopped.
	Stopping State = "stopping"
	// Stopped: it was stopped with the group.
	Stopped State = "stopped"
	// Failed: it failed to start too often, or could not be stopped.
	Failed State = "failed"
	// Done: a one-shot unit ended successfully.
	Done State = "done"
)

// meets reports whether a unit in state s satisfies a need for state want: a ready unit also counts as running, a done
// one-shot unit as both.
func (s State) meets(want State) bool {
	switch want {
	case Running:
		return s == Running || s == Ready || s == Done
	case Ready:
		return s == Ready || s == Done
	}
	return s == want
}

// Need is a unit that another one waits for before it starts.
type Need struct {
	// Name is the name of the needed unit.
	Name string
	// State is the state that it must be in: Ready (the default), Running or, for a one-shot unit, Done.
	State State
}

// String returns the need as shown to users, for example "etcd ready".
func (n Need) String() string { return n.Name + " " + string(n.State) }

// Transition is one change of a unit's state.
type Transition struct {
	Time     time.Time
	Unit     string
	From, To State
	// Reason is the reason as text for users. It is empty when the states are sufficient.
	Reason string
	// Tail holds the last lines of output, only in transitions to BackingOff and Failed.
	Tail []string
	// PID is the process ID in the pid namespace of the supervisor; 0 for a task and when no process runs.
	PID int
	// Restarts counts the starts after the first one.
	Restarts int
}

// UnitStatus is a snapshot of one unit.
type UnitStatus struct {
	Name  string
	State State
	// Since is the time at which it entered State.
	Since time.Time
	// PID is as in Transition.
	PID      int
	Restarts int
	// Reason is the reason of the last transition.
	Reason string
	// Progress describes what the unit does in this state: the last error of a probe, or the last text passed to Progress.
	// It is empty when there is none.
	Progress string
	// WaitingFor lists the unmet needs while the unit is Waiting.
	WaitingFor []Need
	// LogPath is the log file of the last process, if it has one.
	LogPath string
	// Tail holds the last lines of output of a process.
	Tail []string
}

// Why returns in one line what the unit waits for or why it is in its state. It is empty when the unit is Ready or Done.
func (s UnitStatus) Why() string {
	switch {
	case s.State == Ready, s.State == Done:
		return ""
	case len(s.WaitingFor) > 0:
		names := make([]string, len(s.WaitingFor))
		for i, n := range s.WaitingFor {
			names[i] = n.String()
		}
		return "needs " + strings.Join(names, ", ")
	case s.Progress != "" && s.Reason != "":
		return fmt.Sprintf("%s (%s)", s.Progress, s.Reason)
	case s.Progress != "":
		return s.Progress
	}
	return s.Reason
}
