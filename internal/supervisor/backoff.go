package supervisor

import (
	"math"
	"time"
)

// history determines the delay before the next start and when to give up.
type history struct {
	failedStarts int  // consecutive
	deaths       int  // consecutive failures of the ready unit, each within Backoff.ResetAfter except the first
	everReady    bool // since New, or since Restart of the failed unit
}

// failed records a failure and returns the delay before the next start. readyFor is how long the unit was ready, negative
// if it never became ready.
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

// delay returns the n-th delay, counted from 1.
func (b Backoff) delay(n int) time.Duration {
	d := float64(b.Initial) * math.Pow(b.Factor, float64(n-1))
	if d >= float64(b.Max) {
		return b.Max
	}
	return time.Duration(d)
}
