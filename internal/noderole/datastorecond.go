package noderole

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

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
		return status.Condition{Reason: reasonDamaged, Message: "etcd has found that its data is damaged", Steps: restoreHint}
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

var restoreHint = errdefs.Text("# stop the node and restore the directory etcd of the data dir from a backup, or start with new data:").
	Do(errdefs.DeleteData)

const reasonDamaged = "DataDamaged"

// faults are the known causes for which etcd ends, by their text in its log.
var faults = []struct {
	texts  []string
	reason string
	hint   errdefs.Hint
}{
	{[]string{"read-only file system"}, "DataReadOnly", errdefs.Text("# make the file system of the data dir writable")},
	{[]string{"no space left on device", "disk quota exceeded"}, "DiskFull", errdefs.Text("# free space in the file system of the data dir")},
	{[]string{"permission denied"}, "DataNotAccessible", errdefs.Text("# restore the owner and the mode of the directory etcd of the data dir")},
	{
		[]string{"crc mismatch", "checksum", "corrupt", "invalid database", "unexpected EOF", "failed to recover v3 backend", "snapshot file doesn't exist", "version mismatch"},
		reasonDamaged, restoreHint,
	},
}

// unreachable returns the condition of an etcd that does not respond. u is its state.
func unreachable(u supervisor.UnitStatus, err error) status.Condition {
	c := status.Condition{Reason: "NotResponding", Message: "etcd does not respond: " + err.Error()}
	if u.State != supervisor.Ready && u.State != supervisor.Running {
		line := lastError(u.Tail)
		c.Reason, c.Message = "NotRunning", fmt.Sprintf("etcd is %s: %s", u.State, line)
		for _, f := range faults {
			if slices.ContainsFunc(f.texts, func(text string) bool { return strings.Contains(line, text) }) {
				c.Reason, c.Steps = f.reason, f.hint
			}
		}
	}
	c.Steps = slices.Concat(c.Steps, errdefs.Do(errdefs.ShowLogs, etcd.Name))
	return c
}

// lastError returns the line of etcd's output that contains the cause of its end.
func lastError(tail []string) string {
	for _, word := range []string{"\tfatal\t", "panic: ", "\tpanic\t", "\terror\t"} {
		for _, line := range slices.Backward(tail) {
			if _, text, found := strings.Cut(line, word); found {
				return strings.ReplaceAll(text, "\t", " ")
			}
		}
	}
	if len(tail) == 0 {
		return "it has written nothing"
	}
	return strings.ReplaceAll(tail[len(tail)-1], "\t", " ")
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
