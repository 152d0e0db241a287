package outcome

import (
	"fmt"
	"time"
)

// SetFigures counts the results of one set of specs.
type SetFigures struct {
	Name                              string
	Selected, Passed, Failed, Skipped int
	// Flaked is the number of Passed that failed at the first try.
	Flaked int
	// Duration is the sum of the durations of all specs, which is more than the elapsed time of a parallel run.
	Duration time.Duration
}

// Figures counts the specs of run whose labels has accepts, or all specs if has is nil.
func Figures(name string, run Run, has func(labels []string) bool) SetFigures {
	f := SetFigures{Name: name}
	for _, s := range run.Specs {
		if has != nil && !has(s.Labels) {
			continue
		}
		f.Selected++
		f.Duration += s.Duration
		switch s.outcome() {
		case Passed:
			f.Passed++
		case Flaked:
			f.Passed++
			f.Flaked++
		case Failed:
			f.Failed++
		case Skipped:
			f.Skipped++
		}
	}
	return f
}

// Percent returns the percentage of passed specs among those that ran. It is rounded down, so that only a set without failures has 100.0 %.
func (f SetFigures) Percent() string {
	ran := f.Passed + f.Failed
	if ran == 0 {
		return "–"
	}
	tenths := f.Passed * 1000 / ran
	return fmt.Sprintf("%d.%d %%", tenths/10, tenths%10)
}
