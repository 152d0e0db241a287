package kubeapi

import (
	"context"
	"errors"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// backoff defines the delay between attempts: first, then doubled each time up to limit.
type backoff struct{ first, limit time.Duration }

// waiter waits with increasing delays. Its zero value with a backoff starts with the first delay.
type waiter struct {
	backoff backoff
	next    time.Duration
}

func (w *waiter) reset() { w.next = 0 }

// wait sleeps for the current delay, or longer if err contains the server's Retry-After. It returns false if ctx ends first.
func (w *waiter) wait(ctx context.Context, err error) bool {
	d := max(w.next, w.backoff.first)
	w.next = min(2*d, w.backoff.limit)
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
