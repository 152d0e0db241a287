package noderole

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"

	"github.com/rootlessnode/rootlessnode/internal/component/etcd"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

const (
	mib   = int64(1 << 20)
	quota = 64 * mib
)

// fakeEtcd has a database of data that is in use, history that compaction removes, and unused space.
type fakeEtcd struct {
	mu                    sync.Mutex
	data, history, unused int64
	space                 etcd.Space // Quota, Revision, Full and Corrupt
	syncs                 etcd.Syncs
	down                  error // the error of every request
	calls                 []string
	current               map[int64]time.Time // when each revision became current
	ages                  []time.Duration     // of the compacted revisions, when the database was not full
}

func (f *fakeEtcd) call(name string) error {
	if name != "" && f.down == nil {
		f.calls = append(f.calls, name)
	}
	return f.down
}

func (f *fakeEtcd) Space(context.Context) (etcd.Space, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.space
	s.InUse = f.data + f.history
	s.Size = s.InUse + f.unused
	return s, f.call("")
}

func (f *fakeEtcd) Compact(_ context.Context, revision int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.space.Full {
		f.ages = append(f.ages, time.Since(f.current[revision]))
	}
	if revision == f.space.Revision { // only the latest revisions use space
		f.unused, f.history = f.unused+f.history, 0
	}
	return f.call("compact")
}

func (f *fakeEtcd) Defragment(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.unused = 0
	return f.call("defragment")
}

func (f *fakeEtcd) Disarm(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.space.Full = false
	return f.call("disarm")
}

func (f *fakeEtcd) Syncs(context.Context) (etcd.Syncs, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.syncs, f.call("")
}

// change changes the database as a client does, and waits until the watch has seen it.
func (f *fakeEtcd) change(change func()) {
	f.mu.Lock()
	f.calls = nil
	change()
	f.space.Revision++
	f.current[f.space.Revision] = time.Now()
	f.mu.Unlock()
	time.Sleep(datastoreInterval + 2*datastoreRetry)
	synctest.Wait()
}

// watchDatastore calls test with the condition of a datastore that is watched.
func watchDatastore(t *testing.T, f *fakeEtcd, u supervisor.UnitStatus, test func(t *testing.T, now func() status.Condition)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		hub := status.NewHub(status.Status{}, status.Options{})
		f.space.Quota, f.space.Revision, f.current = quota, 100, map[int64]time.Time{100: time.Now()}
		runConditions(t, hub, map[string]conditionWatch{status.ConditionDatastore: &datastoreWatch{
			api: f, unit: func() supervisor.UnitStatus { return u }, file: filepath.Join(t.TempDir(), "db"), log: silentLog(),
		}})
		synctest.Wait()
		test(t, func() status.Condition {
			s := hub.Snapshot()
			return *s.Condition(status.ConditionDatastore)
		})
	})
}

var etcdReady = supervisor.UnitStatus{Name: etcd.Name, State: supervisor.Ready}

// TestDatastoreIsFreed fills a database. The node warns, removes history and unused space by itself, and allows writes again
// as soon as there is space.
func TestDatastoreIsFreed(t *testing.T) {
	t.Parallel()
	f := &fakeEtcd{data: 10 * mib}
	watchDatastore(t, f, etcdReady, func(t *testing.T, now func() status.Condition) {
		assert.DeepEqual(t, now(), status.Condition{Type: status.ConditionDatastore, OK: true, Since: now().Since})

		f.change(func() { f.unused = 30 * mib })
		assert.Assert(t, is.Len(f.calls, 0), "below the limit nothing is done")

		f.change(func() { f.unused = 40 * mib })
		assert.DeepEqual(t, f.calls, []string{"defragment"})
		assert.Assert(t, now().OK && !now().Warning)

		f.change(func() { f.data = 50 * mib })
		c := now()
		assert.Assert(t, c.OK && c.Warning && c.Reason == "SpaceLow", "%+v", c)
		assert.Equal(t, c.Message, "the database has 50 MiB, of which 50 MiB are in use; the quota is 64 MiB")
		assert.Check(t, is.Contains(c.Hint, "controlPlane.etcdQuotaBytes=134217728"))

		f.change(func() { f.history, f.space.Full = 14*mib, true })
		assert.DeepEqual(t, f.calls, []string{"compact", "defragment", "disarm"})
		assert.Assert(t, now().OK && now().Warning, "%+v", now())

		f.change(func() { f.data, f.space.Full = 63*mib, true })
		c = now()
		assert.Assert(t, !c.OK && c.Reason == "QuotaExceeded", "%+v", c)
		assert.Assert(t, !slices.Contains(f.calls, "defragment"), "it would gain nothing: %v", f.calls)

		f.change(func() { f.data, f.history = 20*mib, 43*mib }) // the client deletes data, which becomes history
		assert.DeepEqual(t, f.calls, []string{"compact", "defragment", "disarm"})
		assert.Assert(t, now().OK && !now().Warning, "%+v", now())
	})
}

// TestDatastoreQuotaRaised starts a node with a larger quota after its database was full.
func TestDatastoreQuotaRaised(t *testing.T) {
	t.Parallel()
	f := &fakeEtcd{data: 30 * mib, space: etcd.Space{Full: true}}
	watchDatastore(t, f, etcdReady, func(t *testing.T, now func() status.Condition) {
		assert.DeepEqual(t, f.calls, []string{"disarm"})
		assert.Assert(t, now().OK && !now().Warning, "%+v", now())
	})
}

// TestDatastoreHistoryIsKept checks that revisions of the last minute are compacted only if the database is full.
func TestDatastoreHistoryIsKept(t *testing.T) {
	t.Parallel()
	f := &fakeEtcd{data: 50 * mib}
	watchDatastore(t, f, etcdReady, func(t *testing.T, _ func() status.Condition) {
		for range 20 {
			f.change(func() { f.history += mib / 10 })
		}
		f.change(func() {
			assert.Assert(t, len(f.ages) > 1)
			for _, age := range f.ages {
				assert.Assert(t, age >= historyKept, "a revision of %s was compacted", age)
			}
		})
	})
}

// TestDatastoreAtStart checks that a database of which most is not in use becomes small when the node starts.
func TestDatastoreAtStart(t *testing.T) {
	t.Parallel()
	f := &fakeEtcd{data: 5 * mib, unused: 35 * mib}
	watchDatastore(t, f, etcdReady, func(t *testing.T, now func() status.Condition) {
		assert.DeepEqual(t, f.calls, []string{"defragment"})
		f.change(func() { f.unused = 35 * mib })
		assert.Assert(t, is.Len(f.calls, 0), "only at start")
		assert.Assert(t, now().OK)
	})
}

// TestDatastoreDown checks the reasons for which etcd does not respond.
func TestDatastoreDown(t *testing.T) {
	t.Parallel()
	refused := errors.New("connection refused")
	ended := func(reason string) supervisor.UnitStatus {
		return supervisor.UnitStatus{State: supervisor.BackingOff, Reason: reason}
	}
	for name, c := range map[string]struct {
		unit         supervisor.UnitStatus
		reason, says string
		hint         string
	}{
		"hangs": {etcdReady, "NotResponding", "connection refused", "logs"},
		"read-only": {ended("exited with status 1: discovery failed {\"error\": \"open /var/lib/etcd/member: read-only file system\"}"),
			"DataReadOnly", "discovery failed", "writable"},
		"damaged":   {ended("exited with status 2: walpb: crc mismatch"), etcd.ReasonDamaged, "crc mismatch", "backup"},
		"disk full": {ended("exited with status 2: wal: write: no space left on device"), "DiskFull", "no space left", "free space"},
		"unknown":   {ended("killed by SIGKILL"), "NotRunning", "killed by SIGKILL", "logs"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &fakeEtcd{data: mib}
			watchDatastore(t, f, c.unit, func(t *testing.T, now func() status.Condition) {
				f.change(func() { f.down = refused })
				got := now()
				assert.Assert(t, !got.OK && got.Reason == c.reason, "%+v", got)
				assert.Check(t, is.Contains(got.Message, c.says))
				assert.Check(t, is.Contains(got.Hint, c.hint))
				f.change(func() { f.down = nil })
				assert.Assert(t, now().OK)
			})
		})
	}
}

// TestDatastoreStarts checks that an etcd that has not responded yet is pending, unless it has failed.
func TestDatastoreStarts(t *testing.T) {
	t.Parallel()
	for state, pending := range map[supervisor.State]bool{supervisor.Running: true, supervisor.Waiting: true, supervisor.BackingOff: false} {
		f := &fakeEtcd{down: errors.New("connection refused")}
		watchDatastore(t, f, supervisor.UnitStatus{State: state}, func(t *testing.T, now func() status.Condition) {
			time.Sleep(time.Minute)
			synctest.Wait()
			assert.Assert(t, now().Pending == pending && !now().OK, "%s: %+v", state, now())
		})
	}
}

func TestDatastoreCorrupt(t *testing.T) {
	t.Parallel()
	f := &fakeEtcd{data: mib, space: etcd.Space{Corrupt: true}}
	watchDatastore(t, f, etcdReady, func(t *testing.T, now func() status.Condition) {
		assert.Assert(t, !now().OK && now().Reason == "DataDamaged", "%+v", now())
	})
}

// TestDatastoreDiskSlow checks the warning for a slow disk, and its end.
func TestDatastoreDiskSlow(t *testing.T) {
	t.Parallel()
	f := &fakeEtcd{data: mib}
	write := func(n uint64, each time.Duration) {
		f.change(func() { f.syncs.Count, f.syncs.Total = f.syncs.Count+n, f.syncs.Total+time.Duration(n)*each })
		time.Sleep(syncInterval)
		synctest.Wait()
	}
	watchDatastore(t, f, etcdReady, func(t *testing.T, now func() status.Condition) {
		write(100, 400*time.Millisecond)
		c := now()
		assert.Assert(t, c.OK && c.Warning && c.Reason == "DiskSlow", "%+v", c)
		assert.Check(t, strings.Contains(c.Message, "400ms on average"), c.Message)
		write(100, time.Millisecond)
		assert.Assert(t, now().OK && !now().Warning, "%+v", now())
		write(2, time.Second)
		assert.Assert(t, !now().Warning, "too few to tell")
	})
}

// TestExplain checks that the reason of a component that ended has the cause and the fix.
func TestExplain(t *testing.T) {
	t.Parallel()
	err := explain(etcd.Component(), []string{"x\tfatal\tetcdmain/etcd.go:157\tdiscovery failed\t{\"error\": \"walpb: crc mismatch\"}", "main.main()"})
	assert.Error(t, err, `discovery failed {"error": "walpb: crc mismatch"}`)
	assert.DeepEqual(t, errdefs.ReportOf(err).Steps, []errdefs.Hint{etcd.Restore()})
	assert.NilError(t, explain(etcd.Component(), []string{"starting"}))
}

// TestDatastoreExcuses checks that failed starts do not count while the database is full, and for some time afterwards.
func TestDatastoreExcuses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &fakeEtcd{data: 10 * mib, space: etcd.Space{Quota: quota}}
		w := &datastoreWatch{api: f, log: silentLog()}
		report := conditionReporter{status.ConditionDatastore, status.NewHub(status.Status{}, status.Options{})}
		w.check(t.Context(), report)
		assert.Assert(t, !w.recentlyFull())
		f.space.Full = true
		w.check(t.Context(), report)
		assert.Assert(t, !f.space.Full && w.recentlyFull(), "it was full, and has space again")
		time.Sleep(fullExcuse)
		assert.Assert(t, !w.recentlyFull())
		assert.Assert(t, !(*datastoreWatch)(nil).recentlyFull(), "a worker has no datastore")
	})
}
