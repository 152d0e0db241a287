package kubeapi

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// pace says how long to wait between attempts: first, then twice as long each time, at most limit.
type pace struct{ first, limit time.Duration }

// waiter walks along a pace. Its zero value with a pace set is at the beginning.
type waiter struct {
	pace pace
	next time.Duration
}

func (w *waiter) reset() { w.next = 0 }

// wait sleeps for the present step, or for longer if err carries the server's Retry-After. It returns false when ctx
// ended first.
func (w *waiter) wait(ctx context.Context, err error) bool {
	d := max(w.next, w.pace.first)
	w.next = min(2*d, w.pace.limit)
	if s, ok := retryAfter(err); ok {
		d = max(d, s)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

func retryAfter(err error) (time.Duration, bool) {
	var se *apierrors.StatusError
	if !errors.As(err, &se) {
		return 0, false
	}
	s, ok := apierrors.SuggestsClientDelay(se)
	return time.Duration(s) * time.Second, ok
}
