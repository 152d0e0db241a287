package portfwd

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/rootless-containers/rootlesskit/v3/pkg/api"
	"github.com/rootless-containers/rootlesskit/v3/pkg/port"
	"github.com/sirupsen/logrus"
)

const (
	// DefaultConcurrency is how many requests to the port manager are under way at once.
	DefaultConcurrency = 8
	// DefaultResyncEvery is how often the port manager's list is compared with ours although nothing has changed.
	DefaultResyncEvery = 30 * time.Second
	// DefaultCallTimeout bounds one request to the port manager. RootlessKit itself gives up a removal after 5 s.
	DefaultCallTimeout = 10 * time.Second
	// changeEvery bounds how often OnChange is called; changeEach is added for every forward, since its work grows with them.
	changeEvery = 20 * time.Millisecond
	changeEach  = 50 * time.Microsecond
)

// Options for New. Manager is required; the rest has useful zero values.
type Options struct {
	Manager Manager
	// Source tells of Services; without one there are static forwards only.
	Source Source
	// Pods tells of this node's pods; without one there are no host ports of pods.
	Pods PodSource
	// Endpoints tells which Services are ready. With one, the ports of a Service that nobody would answer for are closed
	// and refuse connections; without one they accept and then hang up.
	Endpoints EndpointSource
	// Publisher writes the addresses of Services of type LoadBalancer; without one they get none.
	Publisher Publisher
	// SourceFilter enforces loadBalancerSourceRanges. Without one, Services that have some are refused with a Warning, because
	// RootlessKit's own port drivers cannot enforce them.
	SourceFilter SourceFilter
	Config       Config
	// Ledger is the file that remembers which forwards are ours, mode 0600, in a directory that lives at least as long
	// as RootlessKit does. If it is empty, forwards made before a restart are taken for somebody else's.
	Ledger string
	// KeepOnStop leaves the forwards open when Run ends; they are adopted by the next Run with the same Ledger.
	KeepOnStop bool
	// RestoreForeign makes forwards of others, by hand through RootlessKit's API, again when they are found to be gone at
	// the beginning of Run: for callers whose RootlessKit ends when they are killed. After a Run that ended by itself there
	// are none to restore. One that was made within ResyncEvery of the kill may be lost.
	RestoreForeign bool
	// OnEvent and OnChange are called from Run's goroutine with no lock held and must return quickly; both may be nil.
	// OnChange says that Status may give another answer than before; it comes first before anything is forwarded, then
	// at most 50 times a second, less often with many forwards, and once more when Run is about to return.
	OnEvent  func(Event)
	OnChange func()
	// Log may be nil.
	Log logrus.FieldLogger
	// Concurrency, ResyncEvery and CallTimeout: the Default constants if 0.
	Concurrency int
	ResyncEvery time.Duration
	CallTimeout time.Duration
}

// Forwarder makes the host's forwarded ports agree with what is wanted. Use New, then Run once.
type Forwarder struct {
	o      Options
	ledger *ledger
	static expansion

	kick    chan struct{} // Services have changed
	results chan result

	publishKick chan struct{}

	asking question

	mu          sync.Mutex // guards what follows
	services    map[Key]*serviceState
	pods        map[Key]*podState
	endpoints   map[Key]Endpoints
	synced      synced
	unpublished map[Key]struct{} // Services whose addresses are to be looked at
	stale       bool             // what is promised changed since wanted was computed
	remerge     bool             // and more than deltas tell
	deltas      []delta
	running     bool
	entries     map[Bind]*entry
	trouble     map[Bind]Trouble
	troubleNew  bool

	// Used by Run's goroutine alone.
	dirty    map[*entry]struct{} // to be looked at
	later    map[*entry]struct{} // to be looked at when their nextTry comes
	wanted   map[Bind]Forward
	places   map[place]tally
	clean    bool // nobody competes for a place in wanted
	inFlight int
	listNow  bool
	listed   bool
	info     *api.Info
	foreign  []port.Status
	warned   map[Warning]struct{}
	refusals []refusal

	restriction restriction
	outbox      []Event

	changed    bool // since OnChange was called
	changeTold time.Time
}

// synced says which sources have told all there is once. A source that does not exist has.
type synced struct{ services, pods, endpoints bool }

func (s synced) all() bool { return s.services && s.pods && s.endpoints }

// entry is one Bind: what is wanted there, what is there, and what stands between the two. Guarded by Forwarder.mu;
// written by Run's goroutine alone.
type entry struct {
	bind  Bind
	want  *Forward
	owner Owner     // of want, or of the last one
	spec  port.Spec // what want comes to; ParentPort 0 while the node's address is not known
	have  *held
	busy  bool
	asked port.Spec // while busy: of the request

	state  State
	since  time.Time
	reason string
	err    error
	hint   string
	told   string // reason of the last Event

	trouble Trouble // while it is open

	delay   time.Duration
	nextTry time.Time
}

// held is a forward that the port manager has.
type held struct {
	id   int
	spec port.Spec
	ours bool
}

// New checks the options and opens the ledger. It calls nobody.
func New(o Options) (*Forwarder, error) {
	if o.Manager == nil {
		return nil, errors.New("forward ports: no port manager given")
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
	o.Config.unfiltered = o.SourceFilter == nil
	l, err := openLedger(o.Ledger)
	if err != nil {
		return nil, err
	}
	f := &Forwarder{
		o: o, ledger: l,
		kick:        make(chan struct{}, 1),
		results:     make(chan result, o.Concurrency),
		publishKick: make(chan struct{}, 1),
		services:    map[Key]*serviceState{},
		pods:        map[Key]*podState{},
		endpoints:   map[Key]Endpoints{},
		synced:      synced{services: o.Source == nil, pods: o.Pods == nil, endpoints: o.Endpoints == nil},
		unpublished: map[Key]struct{}{},
		stale:       true,
		remerge:     true,
		entries:     map[Bind]*entry{},
		dirty:       map[*entry]struct{}{},
		later:       map[*entry]struct{}{},
		listNow:     true,
		changed:     true,
		warned:      map[Warning]struct{}{},
		restriction: restriction{watched: map[Bind]struct{}{}, inForce: map[Bind]SourceRanges{}},
	}
	f.asking.known = make(chan struct{})
	if f.synced.services {
		close(f.asking.known)
	}
	f.expandStatic()
	return f, nil
}

// Run forwards until ctx ends, then removes what is ours unless KeepOnStop. A port that is refused is no error of Run:
// see Status. It returns nil, or what could not be removed at the end. Call it once.
func (f *Forwarder) Run(ctx context.Context) error {
	f.mu.Lock()
	if f.running {
		f.mu.Unlock()
		return errors.New("forward ports: running already")
	}
	f.running = true
	f.mu.Unlock()

	var wg sync.WaitGroup
	f.runSources(ctx, &wg)
	f.loop(ctx)
	wg.Wait()
	for f.inFlight > 0 {
		f.take(<-f.results)
	}
	var err error
	if !f.o.KeepOnStop {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.o.CallTimeout)
		err = errors.Join(f.removeOurs(stop), f.ledger.setOthers(map[string]struct{}{}))
		cancel()
		f.mu.Lock()
		clear(f.entries)
		f.mu.Unlock()
	}
	f.ledger.close()
	f.changed, f.changeTold = true, time.Time{}
	f.deliver()
	return err
}

func (f *Forwarder) runSources(ctx context.Context, wg *sync.WaitGroup) {
	if s := f.o.Source; s != nil {
		wg.Go(func() { f.keep(ctx, "Services", func(ctx context.Context) error { return s.Run(ctx, sink{f}) }) })
	}
	if s := f.o.Pods; s != nil {
		wg.Go(func() { f.keep(ctx, "pods", func(ctx context.Context) error { return s.Run(ctx, podSink{f}) }) })
	}
	if f.o.Endpoints != nil {
		wg.Go(func() { f.keep(ctx, "endpoints", f.runEndpoints) })
	}
	if f.o.Publisher != nil {
		wg.Go(func() { f.runPublisher(ctx) })
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
				p := paceOf(ReasonUnreachable)
				listDelay = min(max(2*listDelay, p.first), p.limit)
				listDue = time.Now().Add(listDelay)
				f.unreachable(err)
			}
		}
		f.plan()
		f.applyTrouble()
		var wake time.Time
		if !f.listNow {
			restricted := f.restrict(ctx)
			wake = f.dispatch(ctx)
			if !restricted.IsZero() && (wake.IsZero() || restricted.Before(wake)) {
				wake = restricted
			}
		} else if f.inFlight == 0 {
			wake = listDue
		}
		if again := f.deliver(); !again.IsZero() && (wake.IsZero() || again.Before(wake)) {
			wake = again
		}
		if listable() && ctx.Err() == nil {
			continue // dispatch found that the list is out of date
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
			f.take(r)
			for more := true; more; {
				select {
				case r := <-f.results:
					f.take(r)
				default:
					more = false
				}
			}
		}
	}
}
