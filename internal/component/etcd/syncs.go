package etcd

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Syncs counts how often the member has synced its log to disk since it started, and the time that this took. etcd
// responds to a write only after such a sync.
type Syncs struct {
	Count uint64
	Total time.Duration
}

// syncMetric is the name of the histogram of the time of a sync.
const syncMetric = "etcd_disk_wal_fsync_duration_seconds"

// Syncs reads the number of syncs from the member's metrics.
func (m *Maintenance) Syncs(ctx context.Context) (Syncs, error) {
	data, err := m.request(ctx, http.MethodGet, m.metrics, nil)
	if err != nil {
		return Syncs{}, fmt.Errorf("etcd metrics: %w", err)
	}
	return parseSyncs(data)
}

func parseSyncs(metrics []byte) (Syncs, error) {
	count, err := sample(metrics, syncMetric+"_count")
	if err != nil {
		return Syncs{}, err
	}
	sum, err := sample(metrics, syncMetric+"_sum")
	if err != nil {
		return Syncs{}, err
	}
	return Syncs{Count: uint64(count), Total: time.Duration(sum * float64(time.Second))}, nil
}

// sample returns the value of a sample without labels.
func sample(metrics []byte, name string) (float64, error) {
	for line := range bytes.Lines(metrics) {
		if text, ok := strings.CutPrefix(string(line), name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
			if err != nil {
				return 0, fmt.Errorf("etcd metrics: %s: %w", name, err)
			}
			return v, nil
		}
	}
	return 0, fmt.Errorf("etcd metrics: %s: not found", name)
}

// Mean returns the mean time of the syncs since an earlier time, and how many there were. It returns zeros if the member
// was restarted in between.
func (s Syncs) Mean(since Syncs) (time.Duration, uint64) {
	if s.Count <= since.Count || s.Total < since.Total {
		return 0, 0
	}
	n := s.Count - since.Count
	return (s.Total - since.Total) / time.Duration(n), n
}
