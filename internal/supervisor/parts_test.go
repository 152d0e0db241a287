package supervisor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"gotest.tools/v3/assert"
)

func TestBackoff(t *testing.T) {
	t.Parallel()
	const failed = -1
	ms := time.Millisecond
	b := Unit{Backoff: Backoff{Max: 3 * time.Second}}.withDefaults().Backoff
	for name, tc := range map[string]struct {
		readyFor []time.Duration
		want     []time.Duration
	}{
		"never starts":         {[]time.Duration{failed, failed, failed, failed, failed}, []time.Duration{500 * ms, 1000 * ms, 2000 * ms, 3000 * ms, 3000 * ms}},
		"one accident":         {[]time.Duration{time.Second}, []time.Duration{100 * ms}},
		"dies again and again": {[]time.Duration{0, 0, 0, 0}, []time.Duration{100 * ms, 500 * ms, 1000 * ms, 2000 * ms}},
		"accidents far apart": {[]time.Duration{time.Hour, time.Hour, time.Second, time.Second, time.Hour},
			[]time.Duration{100 * ms, 100 * ms, 500 * ms, 1000 * ms, 100 * ms}},
		"quick after a hard start": {[]time.Duration{failed, failed, failed, time.Second, failed},
			[]time.Duration{500 * ms, 1000 * ms, 2000 * ms, 100 * ms, 500 * ms}},
	} {
		t.Run(name, func(t *testing.T) {
			var h history
			for i, d := range tc.readyFor {
				assert.Equal(t, h.failed(b, d), tc.want[i], "failure %d", i)
			}
		})
	}
	var h history
	for range 10_000 { // No overflow.
		h.failed(b, failed)
	}
	assert.Equal(t, h.failed(b, failed), b.Max)
}

func TestTail(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("y", 3*tailLineBytes)
	for name, tc := range map[string]struct {
		writes []string
		want   []string
	}{
		"nothing":       {nil, nil},
		"part":          {[]string{"a"}, []string{"a"}},
		"split":         {[]string{"a", "b\nc", "d\n"}, []string{"ab", "cd"}},
		"empty lines":   {[]string{"\n\na\n"}, []string{"", "", "a"}},
		"bounded":       {[]string{"1\n2\n3\n4\n5"}, []string{"3", "4", "5"}},
		"long":          {[]string{long, long + "\nb"}, []string{long[:tailLineBytes] + "…", "b"}},
		"not text":      {[]string{"\xff\xfe\r\n"}, []string{"\uFFFD"}},
		"reused memory": {[]string{"aaaa\nbbbb\ncccc\nd\n"}, []string{"bbbb", "cccc", "d"}},
	} {
		t.Run(name, func(t *testing.T) {
			tl := newTail(3)
			for _, w := range tc.writes {
				tl.add([]byte(w))
			}
			assert.DeepEqual(t, tl.lines(), tc.want)
		})
	}
}

func FuzzTail(f *testing.F) {
	f.Add([]byte("a\nb\r\n\n"), 3)
	f.Add([]byte(strings.Repeat("z", 2000)), 1)
	f.Fuzz(func(t *testing.T, data []byte, step int) {
		tl := newTail(4)
		step = 1 + max(step, 0)%4096
		for rest := data; len(rest) > 0; {
			n := min(step, len(rest))
			tl.add(rest[:n])
			rest = rest[n:]
		}
		lines := tl.lines()
		assert.Assert(t, len(lines) <= 4)
		for _, l := range lines {
			assert.Assert(t, !strings.Contains(l, "\n"))
		}
		size := cap(tl.part)
		for _, slot := range tl.ring {
			size += cap(slot)
		}
		assert.Assert(t, size <= 5*2*(tailLineBytes+len("…")), "holds %d bytes", size)
	})
}

func TestProcessGroupThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	// The process group of the test itself does not end.
	assert.ErrorContains(t, awaitGroup(ctx, unix.Getpgrp()), "processes remain after SIGKILL")
	assert.NilError(t, awaitGroup(ctx, 1<<30))
}

func TestPoll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		tries := 0
		err := Poll(3*time.Second, "socket", func(ctx context.Context) error {
			if tries++; tries < 4 {
				return fmt.Errorf("try %d", tries)
			}
			<-ctx.Done() // Cancelled: Poll reports the error before.
			return ctx.Err()
		})(ctx)
		assert.Error(t, err, "wait for socket: try 3")

		err = Poll(time.Second, "socket", func(context.Context) error { return errors.New("not called") })(ctx)
		assert.Error(t, err, "wait for socket: context deadline exceeded")
	})
}

// TestPollSlowsDown checks that the pause between two tries grows.
func TestPollSlowsDown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		var gaps []time.Duration
		last := time.Now()
		err := Poll(20*time.Millisecond, "socket", func(context.Context) error {
			gaps, last = append(gaps, time.Since(last)), time.Now()
			return errors.New("no")
		})(ctx)
		assert.ErrorContains(t, err, "wait for socket")
		assert.Equal(t, gaps[1], 20*time.Millisecond)
		assert.Equal(t, gaps[40], 20*time.Millisecond)
		assert.Equal(t, gaps[len(gaps)-1], time.Second)
		assert.Assert(t, slices.IsSorted(gaps[1:]))
	})
}

func TestQueueDeliversAllInOrder(t *testing.T) {
	t.Parallel()
	var got []int
	q := newQueue(func(tr Transition) { got = append(got, tr.PID) })
	done := make(chan struct{})
	go func() { defer close(done); q.serve() }()
	var want []int
	for i := range 1000 {
		q.add(Transition{PID: i})
		want = append(want, i)
	}
	q.end()
	<-done
	assert.DeepEqual(t, got, want)
}
