package noderole

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/rootlessnode/rootlessnode/internal/component"
	"github.com/rootlessnode/rootlessnode/internal/component/etcd"
	"github.com/rootlessnode/rootlessnode/internal/supervisor"
	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
	"github.com/rootlessnode/rootlessnode/pkg/status"
)

// spaceCondition returns the condition for the size of the database, after the node has freed space. reclaim is the error of
// that, or nil.
func spaceCondition(s etcd.Space, reclaim error) status.Condition {
	switch {
	case s.Corrupt:
		return status.Condition{Reason: etcd.ReasonDamaged, Message: "etcd has found that its data is damaged", Steps: etcd.Restore()}
	case s.Full && reclaim == nil:
		return status.Condition{
			Reason: "QuotaExceeded", Message: "etcd refuses writes, because the data in use fills its quota: " + sizes(s), Steps: spaceHint(s),
		}
	case s.Full:
		c := fullCondition(s)
		c.Message += "; freeing space failed: " + reclaim.Error()
		return c
	case low(s):
		return status.Condition{OK: true, Warning: true, Reason: "SpaceLow", Message: sizes(s), Steps: spaceHint(s)}
	}
	return status.Condition{OK: true}
}

// fullCondition returns the condition of a full database, in which the node may be able to free space.
func fullCondition(s etcd.Space) status.Condition {
	return status.Condition{Reason: "QuotaReached", Message: "etcd refuses writes: " + sizes(s), Steps: spaceHint(s)}
}

func sizes(s etcd.Space) string {
	return fmt.Sprintf("the database has %s, of which %s are in use; the quota is %s", mebibytes(s.Size), mebibytes(s.InUse), mebibytes(s.Quota))
}

// spaceHint is how to get space in the database.
func spaceHint(s etcd.Space) errdefs.Hint {
	return errdefs.Text("# delete objects that are not needed; the node then frees their space by itself. Or use a larger quota:").
		Do(errdefs.Stop).Do(errdefs.Start, fmt.Sprintf("%s=%d", etcd.QuotaField, 2*s.Quota))
}

// unreachable returns the condition of an etcd that does not respond. u is its state.
func unreachable(u supervisor.UnitStatus, err error) status.Condition {
	c := status.Condition{Reason: "NotResponding", Message: "etcd does not respond: " + err.Error()}
	if ended(u) {
		c.Reason, c.Message = "NotRunning", "etcd has ended: "+u.Reason
		if fault, known := component.FindFault(u.Reason, etcd.Faults()); known {
			c.Reason, c.Steps = fault.Reason, fault.Fix
		}
	}
	c.Steps = slices.Concat(c.Steps, errdefs.Do(errdefs.ShowLogs, etcd.Name))
	return c
}

// ended reports whether a unit has ended unexpectedly.
func ended(u supervisor.UnitStatus) bool {
	return u.State == supervisor.BackingOff || u.State == supervisor.Failed
}

const (
	// slowSync is the mean time of a sync from which the disk is reported as slow. etcd's own limit for a warning is one
	// second for a single sync.
	slowSync = 250 * time.Millisecond
	// enoughSyncs is the number of syncs that a mean needs.
	enoughSyncs = 5
)

// diskSpeed measures how long etcd waits for the disk.
type diskSpeed struct {
	read   time.Time
	before etcd.Syncs
	last   status.Condition
}

// condition returns the condition for the speed of the disk, which it measures again after syncInterval. etcd without
// metrics has no result.
func (d *diskSpeed) condition(ctx context.Context, api maintenance) status.Condition {
	if time.Since(d.read) < syncInterval {
		return d.last
	}
	ctx, cancel := context.WithTimeout(ctx, datastoreTimeout)
	defer cancel()
	d.last = status.Condition{OK: true}
	now, err := api.Syncs(ctx)
	if err != nil {
		return d.last
	}
	if mean, n := now.Mean(d.before); !d.read.IsZero() && n >= enoughSyncs && mean >= slowSync {
		d.last.Warning, d.last.Reason = true, "DiskSlow"
		d.last.Message = fmt.Sprintf("etcd waits %s on average for the disk (%d writes)", mean.Round(time.Millisecond), n)
		d.last.Steps = errdefs.Text("# use a faster local disk for the data dir, or reduce the load of the disk")
	}
	d.read, d.before = time.Now(), now
	return d.last
}

func mebibytes(n int64) string { return fmt.Sprintf("%d MiB", (n+1<<19)>>20) }
