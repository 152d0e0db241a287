package supervisor

import (
	"fmt"
	"strings"
	"time"
)

// State is where a unit stands in its life. The package comment draws how they follow one another.
type State string

const (
	// Waiting: at least one need is not met.
	Waiting State = "waiting"
	// Starting: the files are being rendered or the process is being made.
	Starting State = "starting"
	// Running: it is there, and not known to be usable yet.
	Running State = "running"
	// Ready: it was found usable.
	Ready State = "ready"
	// BackingOff: it failed and is started again when a delay is over.
	BackingOff State = "backoff"
	// Stopping: it is being ended.
	Stopping State = "stopping"
	// Stopped: it was ended with the group.
	Stopped State = "stopped"
	// Failed: it was given up, or could not be ended.
	Failed State = "failed"
	// Done: a one-shot unit ended well.
	Done State = "done"
)

// meets reports whether a unit in state s is good enough for one that wants it in state want: a unit that is ready
// runs, too, and a one-shot that is done was both.
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
	// Name of the needed unit.
	Name string
	// State it must have reached: Ready (also meant by ""), Running or, for a one-shot, Done.
	State State
}

// String gives the need as it is told to people: "etcd ready".
func (n Need) String() string { return n.Name + " " + string(n.State) }

// Transition tells of one step in the life of a unit.
type Transition struct {
	Time     time.Time
	Unit     string
	From, To State
	// Reason is why, for people; empty where the states say it all.
	Reason string
	// Tail holds the last lines of output, on the way to BackingOff and Failed only.
	Tail []string
	// PID of the process, in the namespace of the supervisor; 0 for a task and when there is none.
	PID int
	// Restarts counts the starts after the first one.
	Restarts int
}

// UnitStatus is the picture of one unit now.
type UnitStatus struct {
	Name  string
	State State
	// Since is when it entered State.
	Since time.Time
	// PID is as in Transition.
	PID      int
	Restarts int
	// Reason is that of the last transition.
	Reason string
	// Progress is what the unit said last about what it is busy with in this state: the last answer of a probe,
	// or what it gave to Progress. Empty when it said nothing.
	Progress string
	// WaitingFor are the needs not met, while the unit is Waiting.
	WaitingFor []Need
	// LogPath is the log file of the last process, if it has one.
	LogPath string
	// Tail holds the last lines of output of a process.
	Tail []string
}

// Why tells in one line what the unit waits for or why it is where it is; empty when it is Ready or Done.
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
