package kubeapi

import (
	"context"
	"errors"
	"math"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
)

// doubling returns the delays between attempts: first, then doubled each time up to limit.
func doubling(first, limit time.Duration) wait.Backoff {
	return wait.Backoff{Duration: first, Cap: limit, Factor: 2, Steps: math.MaxInt}
}

// pause sleeps for the next delay, or longer if err contains the server's Retry-After. It returns false if ctx ends first.
func pause(ctx context.Context, delays *wait.Backoff, err error) bool {
	d := delays.Step()
	var se *apierrors.StatusError
	if errors.As(err, &se) {
		if s, ok := apierrors.SuggestsClientDelay(se); ok {
			d = max(d, time.Duration(s)*time.Second)
		}
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
