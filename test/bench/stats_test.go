package main

import (
	"testing"

	"gotest.tools/v3/assert"
)

func TestSummarize(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		in   []float64
		want summary
	}{
		"nothing": {nil, summary{}},
		"one":     {[]float64{3}, summary{3, 3, 3, 1}},
		"odd":     {[]float64{9, 1, 2}, summary{2, 1, 9, 3}},
		"even":    {[]float64{4, 1, 2, 9}, summary{3, 1, 9, 4}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			assert.Equal(t, summarize(c.in), c.want)
		})
	}
}

// TestRatiosArePairByPair checks that a machine that slows down between two pairs changes the seconds but not the ratio.
func TestRatiosArePairByPair(t *testing.T) {
	t.Parallel()
	assert.DeepEqual(t, ratios([]float64{1, 8, 3}, []float64{2, 16, 6}), []float64{0.5, 0.5, 0.5})
	r := compared("start", []float64{1, 8, 3}, []float64{2, 16, 6}, "s", 0.85)
	assert.Equal(t, r.ratio, "0.50  (0.50–0.50, 3 pairs)")
	assert.Equal(t, r.target, "≤ 0.85  reached")
}

func TestBusy(t *testing.T) {
	t.Parallel()
	assert.Equal(t, ticks{all: 300, idle: 150}.busySince(ticks{all: 100, idle: 100}), 0.75)
	assert.Equal(t, ticks{}.busySince(ticks{}), 0.0)
}
