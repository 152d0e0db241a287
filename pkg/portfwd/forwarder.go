package portfwd

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
	"github.com/sirupsen/logrus"
)

const (
	// DefaultConcurrency is how many requests to the port manager are under way at once.
	DefaultConcurrency = 8
	// DefaultResyncEvery is the interval of comparisons with the port manager's list while nothing changes.
	DefaultResyncEvery = 30 * time.Second
	// DefaultCallTimeout bounds one request to the port manager. RootlessKit itself gives up a removal after 5 s.
	DefaultCallTimeout = 10 * time.Second
	// changeEvery is the least interval between calls of OnChange; changeEach is added for every forward, because the work
	// of the callback grows with their number.
	changeEvery = 20 * time.Millisecond
	changeEach  = 50 * time.Microsecond
)

// Options are the arguments of New. Manager is required; the others have useful zero values.
type Options struct {
	Manager Manager
	// Source watches Services. Without it, only static forwards are made.
	Source Source
	// Pods watches the pods of this node. Without it, host ports of pods are not forwarded.
	Pods PodSource
	// Endpoints watches the readiness of Services. With it, the ports of a Service without a ready endpoint are closed and
	// refuse connections. Without it, such ports accept a connection and then close it.
	Endpoints EndpointSource
	// Publisher writes the addresses of Services of type LoadBalancer. Without it, they get no address.
	Publisher Publisher
	// SourceFilter enforces loadBalancerSourceRanges. Without it, Services with source ranges are refused with a Warning,
	// because RootlessKit's own port drivers cannot enforce them.
	SourceFilter SourceFilter
	Config       Config
	// Ledger is the path of the file that records the forwards of this Forwarder. Its mode is 0600, and its directory must
	// live at least as long as RootlessKit. If Ledger is empty, forwards of an earlier run are treated as foreign.
	Ledger string
	// KeepOnStop leaves the forwards open when Run ends. The next Run with the same Ledger takes them over.
	KeepOnStop bool
	// RestoreForeign recreates foreign forwards, which were added through RootlessKit's API, if they are gone when Run
	// starts. It is for callers whose RootlessKit ends when they are killed. After a regular end of Run there is nothing to
	// restore. A forward that was added less than ResyncEvery before the kill may be lost.
	RestoreForeign bool
	// OnEvent and OnChange are called from Run's goroutine without locks and must return quickly; both may be nil. OnChange
	// reports that the result of Status may have changed. It is called once before anything is forwarded, then at most 50
	// times a second (less often with many forwards), and once before Run returns.
	OnEvent  func(Event)
	OnChange func()
	// Log may be nil.
	Log logrus.FieldLogger
	// Concurrency, ResyncEvery and CallTimeout are set to the Default constants if they are 0.
	Concurrency int
	ResyncEvery time.Duration
	CallTimeout time.Duration
}

// Forwarder keeps the forwarded ports of the host in line with the wanted ones. Create it with New, then call Run once.
type Forwarder struct {
	o      Options
	ledger *ledger

	kick    chan struct{} // the inputs have changed
	results chan result

	mu         sync.Mutex // guards in, running, entries, trouble and troubleNew
	in         inputs
	running    bool
	entries    map[Bind]*entry
	trouble    map[Bind]Trouble
	troubleNew bool

	query       endpointQuery
	publish     publisher
	plan        planner
	restriction restriction

	// Only used by Run's goroutine.
	queue    queue
	inFlight int
	listNow  bool
	manager  managerState
	refusals []refusal
	reports  reports
}

// synced records which sources have delivered their first complete list. A source that is not configured counts as synced.
type synced struct{ services, pods, endpoints bool }

// inputs reports whether all Services and pods are known. Until then, a place is not given to an owner only because it was
// reported first.
func (s synced) inputs() bool { return s.services && s.pods }

// entry is the state of one Bind: the wanted forward, the existing one and the progress between the two. It is guarded by
// Forwarder.mu and written only by Run's goroutine.
type entry struct {
	bind      Bind
	want      *Forward
	owner     Owner     // of want, or of the last wanted forward
	spec      port.Spec // of want; ParentPort is 0 while the node's address is unknown
	have      *existing
	busy      bool
	requested port.Spec // the request's spec while busy

	state    State
	since    time.Time
	reason   string
	err      error
	hint     string
	reported string // reason of the last Event, to report each reason once

	trouble Trouble // only while open

	delay   time.Duration
	nextTry time.Time
}

// existing is a forward that the port manager has.
type existing struct {
	id    int
	spec  port.Spec
	owned bool
}

// New checks the options and opens the ledger. It does not connect to the port manager.
func New(o Options) (*Forwarder, error) {
	if o.Manager == nil {
		return nil, errors.New("forward ports: Options.Manager is required")
	}
	if o.Concurrency <= 0 {
		o.Concurrency = DefaultConcurrency
	}
	if o.ResyncEvery <= 0 {
		o.ResyncEvery = DefaultResyncEvery
	}
	if o.CallTimeout <= 0 {
		o.CallTimeout = DefaultCallTimeout
	}
	if o.Log == nil {
		silent := logrus.New()
		silent.SetOutput(io.Discard)
		o.Log = silent
	}
	o.Config = o.Config.normal()
	o.Config.unfiltered, o.Config.denied = o.SourceFilter == nil, map[Bind]struct{}{}
	l, err := openLedger(o.Ledger)
	if err != nil {
		return nil, err
	}
	f := &Forwarder{
		o: o, ledger: l,
		kick:    make(chan struct{}, 1),
		results: make(chan result, o.Concurrency),
		entries: map[Bind]*entry{},
		queue:   queue{dirty: map[*entry]struct{}{}, later: map[*entry]struct{}{}},
		listNow: true,
	}
	f.in = inputs{
		f: f, services: map[Key]*serviceState{}, pods: map[Key]*podState{}, endpoints: map[Key]Endpoints{},
		synced: synced{services: o.Source == nil, pods: o.Pods == nil, endpoints: o.Endpoints == nil},
		stale:  true, remerge: true,
	}
	f.query = endpointQuery{f: f, known: make(chan struct{})}
	f.publish = publisher{f: f, kick: make(chan struct{}, 1), pending: map[Key]struct{}{}}
	f.plan = planner{f: f}
	f.restriction = restriction{f: f, watched: map[Bind]struct{}{}, inForce: map[Bind]SourceRanges{}}
	f.reports = reports{o: &f.o, warned: map[Warning]struct{}{}, changed: true}
	if f.in.synced.services {
		close(f.query.known)
	}
	f.plan.expandStatic()
	return f, nil
}

// Run forwards ports until ctx ends. Then it removes the forwards of this Forwarder unless KeepOnStop is set. A refused port
// is not an error of Run: see Status. Run returns an error only if forwards could not be removed at the end. Call it once.
func (f *Forwarder) Run(ctx context.Context) error {
	f.mu.Lock()
	if f.running {
		f.mu.Unlock()
		return errors.New("forward ports: already running")
	}
	f.running = true
	f.mu.Unlock()

	var wg sync.WaitGroup
	f.runSources(ctx, &wg)
	f.loop(ctx)
	wg.Wait()
	for f.inFlight > 0 {
		f.handleResult(<-f.results)
	}
	var err error
	if !f.o.KeepOnStop {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.o.CallTimeout)
		err = errors.Join(removeOwned(stop, f.o.Manager, f.ledger, f.o.Concurrency), f.ledger.setOthers(map[string]struct{}{}))
		cancel()
		f.mu.Lock()
		clear(f.entries)
		f.mu.Unlock()
	}
	f.ledger.close()
	f.reports.changed, f.reports.lastOnChange = true, time.Time{}
	f.reports.deliver(0)
	return err
}

func (f *Forwarder) runSources(ctx context.Context, wg *sync.WaitGroup) {
	if s := f.o.Source; s != nil {
		wg.Go(func() {
			runSource(ctx, f.o.Log, "Services", func(ctx context.Context) error { return s.Run(ctx, sink{&f.in}) })
		})
	}
	if s := f.o.Pods; s != nil {
		wg.Go(func() {
			runSource(ctx, f.o.Log, "pods", func(ctx context.Context) error { return s.Run(ctx, podSink{&f.in}) })
		})
	}
	if f.o.Endpoints != nil {
		wg.Go(func() { runSource(ctx, f.o.Log, "endpoints", f.query.run) })
	}
	if f.o.Publisher != nil {
		wg.Go(func() { f.publish.run(ctx) })
	}
}

func (f *Forwarder) loop(ctx context.Context) {
	var (
		listDelay time.Duration
		listDue   time.Time
	)
	listable := func() bool { return f.listNow && f.inFlight == 0 && !time.Now().Before(listDue) }
	resync := time.NewTimer(f.o.ResyncEvery)
	defer resync.Stop()
	retry := time.NewTimer(0)
	defer retry.Stop()
	for {
		if listable() {
			if err := f.list(ctx); err == nil {
				listDelay = 0
				resync.Reset(f.o.ResyncEvery)
			} else if ctx.Err() == nil {
				p := backoffFor(ReasonUnreachable)
				listDelay = min(max(2*listDelay, p.first), p.limit)
				listDue = time.Now().Add(listDelay)
				f.unreachable(err)
			}
		}
		f.plan.update()
		f.applyTrouble()
		var wake time.Time
		if !f.listNow {
			restricted := f.restriction.apply(ctx)
			wake = f.dispatch(ctx)
			if !restricted.IsZero() && (wake.IsZero() || restricted.Before(wake)) {
				wake = restricted
			}
		} else if f.inFlight == 0 {
			wake = listDue
		}
		if again := f.reports.deliver(len(f.entries)); !again.IsZero() && (wake.IsZero() || again.Before(wake)) {
			wake = again
		}
		if listable() && ctx.Err() == nil {
			continue // dispatch found that the list is outdated
		}
		var due <-chan time.Time
		if !wake.IsZero() {
			retry.Reset(time.Until(wake))
			due = retry.C
		}
		select {
		case <-ctx.Done():
			return
		case <-f.kick:
		case <-due:
		case <-resync.C:
			f.listNow = true
			resync.Reset(f.o.ResyncEvery)
		case r := <-f.results:
			f.handleResult(r)
			for more := true; more; {
				select {
				case r := <-f.results:
					f.handleResult(r)
				default:
					more = false
				}
			}
		}
	}
}
