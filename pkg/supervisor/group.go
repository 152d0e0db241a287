package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// Options is what a group needs besides its units. The zero value is usable.
type Options struct {
	// Log gets one line for each thing a person may want to know; nil for none. Ready units at info, deaths at warning,
	// failures at error, all else at debug. The log is written by the goroutine that calls OnTransition.
	Log logrus.FieldLogger
	// OnTransition is told of every transition, in order, one at a time, from a goroutine of the group. It may call the
	// group's methods. Run returns only after the last call has returned.
	OnTransition func(Transition)
	// TailLines is how many last lines of a process are remembered.
	TailLines int
	// LogMaxBytes is the size at which a log file becomes its own ".1".
	LogMaxBytes int64
	// KillWait is how long what was sent SIGKILL may take to vanish before that is an error.
	KillWait time.Duration
}

// Group is a set of units. Make one with New; its methods may be called from everywhere.
type Group struct {
	o       Options
	units   []*unit // in the order given to New
	byName  map[string]*unit
	starter *starter
	events  *queue
	launch  func(*unit, Process) (instance, error) // startProcess, but in tests

	mu      sync.Mutex
	changed chan struct{}           // closed and made anew with each transition
	ctx     context.Context         // of a run: done when the group stops; nil before Run
	stop    context.CancelCauseFunc // ends ctx
	over    bool                    // Run has returned
	faults  []error                 // for Run to return
}

// unit is a Unit with its place in the group.
type unit struct {
	Unit
	g        *Group
	needs    []*unit       // side by side with Unit.Needs
	outlives []*unit       // those that must have ended before it is stopped: the units that need it, and Unit.StopAfter
	ended    chan struct{} // closed when nothing of it is left
	out      *output

	// Owned by the goroutine of the unit.
	history history
	how     string // it was stopped, if not as asked

	// Guarded by g.mu.
	state    State
	since    time.Time
	pid      int
	starts   int
	reason   string
	progress string
	fault    error                   // why it is Failed
	again    context.CancelCauseFunc // ends the current round for another one
}

// New returns a group of units. Its error joins every fault found: names, needs, rings of needs, fields.
func New(units []Unit, o Options) (*Group, error) {
	if o.Log == nil {
		quiet := logrus.New()
		quiet.SetOutput(io.Discard)
		o.Log = quiet
	}
	o.TailLines = or(o.TailLines, DefaultTailLines)
	o.LogMaxBytes = or(o.LogMaxBytes, DefaultLogMaxBytes)
	o.KillWait = or(o.KillWait, DefaultKillWait)

	full := make([]Unit, len(units))
	for i := range units {
		full[i] = units[i].withDefaults()
	}
	if err := check(full); err != nil {
		return nil, err
	}
	g := &Group{
		o:       o,
		byName:  make(map[string]*unit, len(units)),
		starter: newStarter(),
		changed: make(chan struct{}),
	}
	g.events = newQueue(g.tell)
	g.launch = (*unit).startProcess
	now := time.Now()
	for i := range full {
		u := &unit{Unit: full[i], g: g, ended: make(chan struct{}), state: Waiting, since: now}
		u.out = newOutput(o.TailLines, o.LogMaxBytes, o.Log.WithField("unit", u.Name))
		g.units = append(g.units, u)
		g.byName[u.Name] = u
	}
	for _, u := range g.units {
		for _, n := range u.Needs {
			to := g.byName[n.Name]
			u.needs = append(u.needs, to)
			to.outlives = append(to.outlives, u)
		}
		for _, name := range u.StopAfter {
			u.outlives = append(u.outlives, g.byName[name])
		}
	}
	return g, nil
}

// Run starts the units and keeps them until ctx ends or an essential unit fails, then stops them and returns when all are
// gone. The error is that of the essential unit, and what could not be stopped; nil when ctx ended and all went well.
// It can be called once.
func (g *Group) Run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	g.mu.Lock()
	if g.ctx != nil {
		g.mu.Unlock()
		return errors.New("run group: it was run before")
	}
	g.ctx, g.stop = ctx, stop
	g.mu.Unlock()

	var helpers, units sync.WaitGroup
	helpers.Go(g.starter.serve)
	helpers.Go(g.events.serve)
	for _, u := range g.units {
		halt, stopUnit := context.WithCancel(context.WithValue(context.WithoutCancel(ctx), unitKey{}, u))
		units.Go(func() {
			defer stopUnit()
			<-ctx.Done()
			for _, d := range u.outlives {
				<-d.ended
			}
		})
		units.Go(func() { u.run(ctx, halt) })
	}
	units.Wait()
	g.starter.end()
	g.mu.Lock()
	g.over = true
	g.announce()
	err := errors.Join(g.faults...)
	g.mu.Unlock()
	g.events.end()
	helpers.Wait()
	return err
}

// fail notes err for Run to return and, if the group cannot go on with it, stops the group.
func (g *Group) fail(err error, stop bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.faults = append(g.faults, err)
	if stop {
		g.stop(err)
	}
}

// tell makes a transition known outside of the group.
func (g *Group) tell(t Transition) {
	log := g.o.Log.WithField("unit", t.Unit)
	switch t.To {
	case Ready:
		log.Info("ready")
	case BackingOff:
		log.Warn(t.Reason)
	case Failed:
		log.Error(t.Reason)
	default:
		log.WithField("reason", t.Reason).Debug(string(t.To))
	}
	if g.o.OnTransition != nil {
		g.o.OnTransition(t)
	}
}

// announce wakes all who wait for a change. g.mu is held.
func (g *Group) announce() {
	close(g.changed)
	g.changed = make(chan struct{})
}

// Status returns the picture of every unit, in the order given to New.
func (g *Group) Status() []UnitStatus {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := make([]UnitStatus, len(g.units))
	for i, u := range g.units {
		all[i] = UnitStatus{Name: u.Name, State: u.state, Since: u.since, PID: u.pid, Restarts: u.restarts(),
			Reason: u.reason, Progress: u.progress, LogPath: u.out.logPath(), Tail: u.out.last()}
		if u.state == Waiting {
			all[i].WaitingFor = u.unmet()
		}
	}
	return all
}

// WaitFor blocks until the unit is in state (a unit that is ready counts as running, one that is done as both), and
// returns an error when it has failed or the group is over instead, or when ctx ends; that one says what the unit waits
// for.
func (g *Group) WaitFor(ctx context.Context, name string, state State) error {
	u, ok := g.byName[name]
	if !ok {
		return fmt.Errorf("wait for unit %s: unknown unit", name)
	}
	for {
		g.mu.Lock()
		is, fault, over, changed := u.state, u.fault, g.over, g.changed
		g.mu.Unlock()
		switch {
		case is.meets(state):
			return nil
		case is == Failed && fault != nil:
			return fault
		case over:
			return fmt.Errorf("wait for %s to be %s: the group has ended; the unit is %s", name, state, is)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for %s to be %s: %w; %s", name, state, context.Cause(ctx), u.describe())
		}
	}
}

// describe tells the state of u and what it waits for.
func (u *unit) describe() string {
	for _, s := range u.g.Status() {
		if s.Name == u.Name {
			if why := s.Why(); why != "" {
				return fmt.Sprintf("it is %s: %s", s.State, why)
			}
			return fmt.Sprintf("it is %s", s.State)
		}
	}
	return ""
}

var errAgain = errors.New("restart asked")

// Restart ends what runs of the unit and starts it again when its needs are met; a delay is cut short, and a failed or
// done unit gets another life. Units that need it go on. It does not wait: when it has returned the unit is no longer
// in the state it had, so WaitFor waits for the new start. Asking again before that start changes nothing.
func (g *Group) Restart(name string) error {
	u, ok := g.byName[name]
	if !ok {
		return fmt.Errorf("restart unit %s: unknown unit", name)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.ctx == nil:
		return fmt.Errorf("restart unit %s: the group does not run", name)
	case g.ctx.Err() != nil:
		return fmt.Errorf("restart unit %s: the group is stopping", name)
	}
	switch u.state {
	case Running, Ready:
		u.move(Stopping, errAgain.Error())
	case BackingOff, Failed, Done:
		u.move(Waiting, errAgain.Error())
	}
	if u.again != nil {
		u.again(errAgain)
	}
	return nil
}
