package promtext

import (
	"testing"
	"time"

	"gotest.tools/v3/assert"
)

func TestWriter(t *testing.T) {
	t.Parallel()
	var w Writer
	w.Metric("things_total", Counter, "Things, with a \\ and\ntwo lines.")
	w.Sample(3)
	w.Sample(0.5, Label{"a", "x\"y\\\n"}, Label{"b", ""})
	w.At(time.UnixMilli(1500))
	w.Metric("level", Gauge, "Level.")
	w.Sample(1e18)
	assert.Equal(t, string(w.Bytes()), `# HELP things_total Things, with a \\ and\ntwo lines.
# TYPE things_total counter
things_total 3
things_total{a="x\"y\\\n",b=""} 0.5
# HELP level Level.
# TYPE level gauge
level 1e+18 1500
`)
}
