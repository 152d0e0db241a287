package supervisor

import (
	"math"
	"time"
)

// history is what the delay before the next start, and giving up, are decided by.
type history struct {
	failedStarts int  // in a row
	deaths       int  // of a ready unit, each after less than Backoff.ResetAfter, the first one aside
	everReady    bool // since New, or since Restart took it back from Failed
}

// failed notes one more end of a unit that should have gone on. readyFor is how long it was ready; negative for a start
// that did not get there. It returns the delay before the next start.
func (h *history) failed(b Backoff, readyFor time.Duration) time.Duration {
	if readyFor < 0 {
		h.failedStarts++
		return b.delay(h.failedStarts)
	}
	h.failedStarts, h.everReady = 0, true
	if readyFor >= b.ResetAfter {
		h.deaths = 0
	}
	h.deaths++
	if h.deaths == 1 {
		return b.Quick
	}
	return b.delay(h.deaths - 1)
}

// delay returns the n-th delay, from 1.
func (b Backoff) delay(n int) time.Duration {
	d := float64(b.Initial) * math.Pow(b.Factor, float64(n-1))
	if d >= float64(b.Max) {
		return b.Max
	}
	return time.Duration(d)
}
