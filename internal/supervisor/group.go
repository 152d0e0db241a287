package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/rootlessnode/rootlessnode/internal/proc"
)

// Options configures a group. The zero value is usable.
type Options struct {
	// Log receives transitions: ready units at info level, units that back off at warning, failed units at error, all
	// others at debug. nil disables the log. It is written by the goroutine that calls OnTransition.
	Log logrus.FieldLogger
	// OnTransition is called for every transition, in order, one at a time, from a goroutine of the group. It may call the
	// group's methods. Run returns only after the last call has returned.
	OnTransition func(Transition)
	// TailLines is the number of last output lines to keep for each unit.
	TailLines int
	// LogMaxBytes is the size at which a log file is renamed to LogPath.1.
	LogMaxBytes int64
	// KillWait is the time after SIGKILL within which processes must have ended. Exceeding it is an error.
	KillWait time.Duration
}

// Group is a set of units. Create one with New. Its methods may be called from any goroutine.
type Group struct {
	o       Options
	units   []*unit // in the order given to New
	byName  map[string]*unit
	starter *proc.Starter
	events  *queue
	launch  func(*unit, Process) (instance, error) // startProcess, except in tests

	mu      sync.Mutex
	changed chan struct{}           // closed and replaced with each transition
	ctx     context.Context         // done when the group stops; nil before Run
	stop    context.CancelCauseFunc // cancels ctx
	over    bool                    // all units of Run have ended
	faults  []error                 // the errors that Run returns
}

// unit is a Unit with its state in the group.
type unit struct {
	Unit
	g         *Group
	needs     []*unit       // parallel to Unit.Needs
	stopAfter []*unit       // must have ended before this unit is stopped: the units that need it, and Unit.StopAfter
	ended     chan struct{} // closed when nothing of it is left
	out       *output

	// Owned by the goroutine of the unit.
	history history
	how     string // how it was stopped, if not normally

	// Guarded by g.mu.
	state       State
	since       time.Time
	pid         int
	starts      int
	reason      string
	progress    string
	fault       error                   // why it is Failed
	cancelRound context.CancelCauseFunc // ends the current round, so that another one begins
}

// New returns a group of units. The returned error joins all errors in the units: names, needs, dependency cycles, fields.
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
		changed: make(chan struct{}),
	}
	g.events = newQueue(g.publish)
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
			to.stopAfter = append(to.stopAfter, u)
		}
		for _, name := range u.StopAfter {
			u.stopAfter = append(u.stopAfter, g.byName[name])
		}
	}
	return g, nil
}

// Run starts the units and supervises them until ctx ends or an essential unit fails. Then it stops them and returns when
// all have ended. The returned error joins that of the essential unit and those of units that could not be stopped. It is
// nil when ctx ended and all units stopped. Run can be called only once.
func (g *Group) Run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	g.mu.Lock()
	if g.ctx != nil {
		g.mu.Unlock()
		return errors.New("run group: already run")
	}
	g.ctx, g.stop, g.starter = ctx, stop, proc.NewStarter()
	g.mu.Unlock()

	var helpers, units sync.WaitGroup
	helpers.Go(g.events.serve)
	for _, u := range g.units {
		halt, stopUnit := context.WithCancel(context.WithValue(context.WithoutCancel(ctx), unitKey{}, u))
		units.Go(func() {
			defer stopUnit()
			<-ctx.Done()
			for _, d := range u.stopAfter {
				<-d.ended
			}
		})
		units.Go(func() { u.run(ctx, halt) })
	}
	units.Wait()
	g.starter.Stop()
	g.mu.Lock()
	g.over = true
	g.announce()
	err := errors.Join(g.faults...)
	g.mu.Unlock()
	g.events.end()
	helpers.Wait()
	return err
}

// fail adds err to the errors that Run returns and, if stop is set, stops the group.
func (g *Group) fail(err error, stop bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.faults = append(g.faults, err)
	if stop {
		g.stop(err)
	}
}

// publish logs a transition and calls OnTransition.
func (g *Group) publish(t Transition) {
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

// announce wakes all goroutines that wait for a change. The caller holds g.mu.
func (g *Group) announce() {
	close(g.changed)
	g.changed = make(chan struct{})
}

// Status returns a snapshot of every unit, in the order given to New.
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

// WaitFor waits until the unit is in state. A ready unit also counts as running, a done unit as both. It returns an error
// when the unit has failed, when the group has ended, or when ctx ends; the last one says what the unit waits for.
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

// describe returns the state of u and what it waits for, as text.
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

var errRestart = errors.New("restart requested")

// Restart stops the unit if it runs, and starts it again when its needs are met. It skips a back-off delay, and also
// starts a failed or done unit. Units that need it continue. It does not wait for the start, but has changed the state when
// it returns, so that WaitFor waits for the new start. Further calls before that start have no effect.
func (g *Group) Restart(name string) error {
	u, ok := g.byName[name]
	if !ok {
		return fmt.Errorf("restart unit %s: unknown unit", name)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.ctx == nil:
		return fmt.Errorf("restart unit %s: the group is not running", name)
	case g.ctx.Err() != nil:
		return fmt.Errorf("restart unit %s: the group is stopping", name)
	}
	switch u.state {
	case Running, Ready:
		u.move(Stopping, errRestart.Error())
	case BackingOff, Failed, Done:
		u.move(Waiting, errRestart.Error())
	}
	if u.cancelRound != nil {
		u.cancelRound(errRestart)
	}
	return nil
}
