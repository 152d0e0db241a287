package proc

import (
	"runtime"
	"sync"
	"syscall"
	"testing"

	"gotest.tools/v3/assert"
)

func TestOneThreadCreatesAllProcesses(t *testing.T) {
	t.Parallel()
	s := NewStarter()
	thread := func() (tid int) {
		assert.NilError(t, s.Do(func() error { tid = syscall.Gettid(); return nil }))
		return tid
	}
	starter := thread()
	var others sync.WaitGroup
	for range 100 {
		others.Go(func() {
			runtime.Gosched()
			assert.Check(t, syscall.Gettid() != starter)
			assert.Check(t, thread() == starter)
			assert.Check(t, syscall.Gettid() != starter)
		})
	}
	others.Wait()
	s.Stop()
}
