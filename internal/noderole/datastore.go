package noderole

import (
	"context"
	"os"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/rootlessnode/rootlessnode/internal/component/etcd"
	"github.com/rootlessnode/rootlessnode/internal/layout"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

const (
	// datastoreTick is the interval between two looks at the size of the database file. The file grows in steps of
	// 16 MiB, and each step is a reason to ask etcd, so that a fast client cannot fill the quota between two requests.
	datastoreTick = 250 * time.Millisecond
	// datastoreInterval is the interval between two requests to a healthy etcd, and datastoreRetry that to any other.
	datastoreInterval = 10 * time.Second
	datastoreRetry    = 2 * time.Second
	// syncInterval is the time over which the speed of the disk is measured.
	syncInterval = time.Minute
	// historyKept is the minimum age of the revisions that are compacted before the quota is reached, so that clients
	// can finish their lists. kube-apiserver compacts only every five minutes.
	historyKept = time.Minute
	// defragmentPause is the minimum time between two defragmentations before the quota is reached.
	defragmentPause = time.Minute

	datastoreTimeout = 5 * time.Second // of a request that only reads
	reclaimTimeout   = 2 * time.Minute // of compaction and defragmentation
)

// maintenance is etcd's maintenance API.
type maintenance interface {
	Space(context.Context) (etcd.Space, error)
	Compact(ctx context.Context, revision int64) error
	Defragment(context.Context) error
	Disarm(context.Context) error
	Syncs(context.Context) (etcd.Syncs, error)
}

// datastoreWatch reports whether the cluster's data can be read and written. It also keeps space free in etcd's
// database, and allows writes again when a full database has space again.
type datastoreWatch struct {
	api  maintenance
	unit func() supervisor.UnitStatus // the state of etcd
	file string                       // the database
	log  logrus.FieldLogger

	asked    time.Time // the last request
	fileSize int64     // at that time
	healthy  bool      // the result of that request
	answered bool      // whether etcd has ever responded
	crashed  bool      // whether it has ended since
	failures int       // consecutive requests without a response

	stable, latest mark  // stable is older than historyKept
	compacted      int64 // the last compacted revision
	defragmented   time.Time
	disk           diskSpeed

	mu   sync.Mutex
	full time.Time // when the database was last found to be full
}

// fullExcuse is the time after which components must have recovered from a full database.
const fullExcuse = time.Minute

// recentlyFull reports whether the database was full within fullExcuse. It may be called concurrently, and for nil. The
// failures of components do not count then: the node would otherwise give up, and its user could not delete data.
func (w *datastoreWatch) recentlyFull() bool {
	if w == nil {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.full.IsZero() && time.Since(w.full) < fullExcuse
}

// mark is a revision and the time at which it was current.
type mark struct {
	at       time.Time
	revision int64
}

// newDatastoreWatch returns the watch of the node's own etcd.
func (n *nodeRole) newDatastoreWatch() *datastoreWatch {
	return &datastoreWatch{
		api: etcd.NewMaintenance(n.env), file: etcd.Database(layout.InsideEtcd), log: n.log,
		unit: func() supervisor.UnitStatus {
			for _, u := range n.group.Status() {
				if u.Name == etcd.Name {
					return u
				}
			}
			return supervisor.UnitStatus{Name: etcd.Name, State: supervisor.Stopped}
		},
	}
}

// Run implements conditionWatch.
func (w *datastoreWatch) Run(ctx context.Context, report conditionReporter) error {
	report.set(status.Condition{Pending: true, Reason: "Starting", Message: "etcd has not responded yet"})
	tick := time.NewTicker(datastoreTick)
	defer tick.Stop()
	for {
		if w.due() {
			w.check(ctx, report)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// due reports whether it is time for a request.
func (w *datastoreWatch) due() bool {
	size := int64(0)
	if info, err := os.Stat(w.file); err == nil {
		size = info.Size()
	}
	interval := datastoreRetry
	if w.healthy {
		interval = datastoreInterval
	}
	if size == w.fileSize && time.Since(w.asked) < interval {
		return false
	}
	w.asked, w.fileSize = time.Now(), size
	return true
}

// check queries the state of etcd, frees space if necessary, and reports the condition. It reports that a full database
// refuses writes also if it can free space at once.
func (w *datastoreWatch) check(ctx context.Context, report conditionReporter) {
	space, err := w.space(ctx)
	if err != nil {
		w.unreachable(ctx, report, err)
		return
	}
	if space.Full {
		w.mu.Lock()
		w.full = time.Now()
		w.mu.Unlock()
		report.set(fullCondition(space))
	}
	if space.Full || low(space) || !w.answered && wasteful(space) {
		space, err = w.reclaim(ctx, space)
		if err != nil {
			w.log.WithError(err).Warn("free space in etcd's database")
		}
	}
	w.answered, w.crashed, w.failures = true, false, 0
	c := spaceCondition(space, err)
	if c.OK && !c.Warning {
		c = w.disk.condition(ctx, w.api)
	}
	w.healthy = c.OK && !c.Warning && err == nil
	report.set(c)
}

// unreachable reports an etcd that does not respond: not after the first failed request, and not while it starts, unless it
// has failed before.
func (w *datastoreWatch) unreachable(ctx context.Context, report conditionReporter, err error) {
	w.healthy = false
	w.failures++
	u := w.unit()
	switch {
	case ctx.Err() != nil || w.failures == 1:
	case ended(u):
		w.crashed = true
		report.set(unreachable(u, err))
	case w.answered && !w.crashed:
		report.set(unreachable(u, err))
	}
}

func (w *datastoreWatch) space(ctx context.Context) (etcd.Space, error) {
	ctx, cancel := context.WithTimeout(ctx, datastoreTimeout)
	defer cancel()
	s, err := w.api.Space(ctx)
	if now := time.Now(); err == nil && (now.Sub(w.latest.at) >= historyKept || s.Revision < w.latest.revision) {
		w.stable, w.latest = w.latest, mark{now, s.Revision}
	}
	return s, err
}

// reclaim compacts and defragments the database if that frees space, and allows writes again if the database was full and
// now has space. It returns the state afterwards, also with an error.
func (w *datastoreWatch) reclaim(ctx context.Context, s etcd.Space) (etcd.Space, error) {
	ctx, cancel := context.WithTimeout(ctx, reclaimTimeout)
	defer cancel()
	steps := []struct {
		needed func() bool
		do     func() error
	}{
		{func() bool { return !s.Full || !fits(s, s.Size) }, func() error { return w.compact(ctx, s) }},
		{func() bool { return w.gains(s) }, func() error { return w.defragment(ctx, s) }},
		{func() bool { return s.Full && fits(s, s.Size) }, func() error { return w.disarm(ctx) }},
	}
	for _, step := range steps {
		if !step.needed() {
			continue
		}
		if err := step.do(); err != nil {
			return s, err
		}
		now, err := w.space(ctx)
		if err != nil {
			return s, err
		}
		s = now
	}
	return s, nil
}

// compact removes the history of the database: all of it if the database is full, otherwise that before historyKept.
func (w *datastoreWatch) compact(ctx context.Context, s etcd.Space) error {
	revision := w.stable.revision
	if s.Full {
		revision = s.Revision
	}
	if revision <= w.compacted {
		return nil
	}
	if err := w.api.Compact(ctx, revision); err != nil {
		return err
	}
	w.compacted = revision
	return nil
}

// gains reports whether the database must be defragmented, which blocks all requests for a moment: if it is full and
// becomes small enough, or if it is nearly full or etcd has just started, and much of it is not in use.
func (w *datastoreWatch) gains(s etcd.Space) bool {
	switch {
	case s.Full:
		return !fits(s, s.Size) && fits(s, s.InUse)
	case !w.answered && wasteful(s):
		return true
	}
	return low(s) && s.Size-s.InUse >= s.Size/4 && time.Since(w.defragmented) >= defragmentPause
}

func (w *datastoreWatch) defragment(ctx context.Context, before etcd.Space) error {
	w.defragmented = time.Now()
	if err := w.api.Defragment(ctx); err != nil {
		return err
	}
	w.log.Infof("defragmented etcd's database, of whose %s %s were in use, in %s",
		mebibytes(before.Size), mebibytes(before.InUse), time.Since(w.defragmented).Round(time.Millisecond))
	return nil
}

func (w *datastoreWatch) disarm(ctx context.Context) error {
	if err := w.api.Disarm(ctx); err != nil {
		return err
	}
	w.log.Info("etcd's database has space again; writes are allowed")
	return nil
}

const (
	// lowPercent of the quota is the size from which the node frees space and warns.
	lowPercent = 70
	// fitsPercent of the quota is the size up to which a full database gets writes again.
	fitsPercent = 95
	// wastefulSize is the size of unused space from which a database is defragmented when etcd starts.
	wastefulSize = 32 << 20
)

// low reports whether the database is nearly full.
func low(s etcd.Space) bool { return s.Size >= s.Quota/100*lowPercent }

// fits reports whether a database of size bytes has space for writes.
func fits(s etcd.Space, size int64) bool { return size <= s.Quota/100*fitsPercent }

// wasteful reports whether most of the database is not in use.
func wasteful(s etcd.Space) bool {
	unused := s.Size - s.InUse
	return unused >= wastefulSize && unused >= s.Size/2
}
