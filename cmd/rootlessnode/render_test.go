package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gotest.tools/v3/assert"
	is "gotest.tools/v3/assert/cmp"
	"gotest.tools/v3/golden"

	"github.com/rootlessnode/rootlessnode/pkg/errdefs"
)

func TestProgressView(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	for _, p := range upStatuses() {
		for _, l := range progressView(p, at(2), style{unicode: true, width: 76}) {
			b.WriteString(l + "\n")
		}
		b.WriteString("--\n")
	}
	golden.Assert(t, b.String(), "view.txt")
}

func TestLiveProgressDrawsOverItself(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := &progress{w: &out, now: func() time.Time { return at(2) }, style: style{}}
	drawn := 0
	p.draw(&drawn, upStatuses()[0])
	p.draw(&drawn, upStatuses()[3])
	assert.Equal(t, drawn, 2)
	assert.Check(t, is.Equal(strings.Count(out.String(), "\x1b[2A"), 1))
	assert.Check(t, strings.HasSuffix(out.String(), "\n\x1b[J"))
}

func TestAge(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 59 * time.Second: "59s", 61 * time.Second: "1m1s", 3 * time.Hour: "3h0m", 49 * time.Hour: "2d1h",
	} {
		assert.Check(t, is.Equal(age(d), want))
	}
}

func TestTruncate(t *testing.T) {
	t.Parallel()
	assert.Equal(t, style{width: 9}.truncate("abcdef", 4), "abcd")
	assert.Equal(t, style{width: 9, unicode: true}.truncate("äbcdef", 4), "äbc…")
	assert.Equal(t, style{width: 9}.truncate("abcdef", -1), "")
	assert.Equal(t, style{}.truncate("abcdef", 1), "abcdef") // a pipe has no width
}

func TestTailOffset(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", chunk) + "\n"
	for _, tc := range []struct {
		text string
		n    int
		want string
	}{
		{"", 3, ""}, {"a\nb\nc\n", 2, "b\nc\n"}, {"a\nb\nc", 2, "b\nc"}, {"a\nb\n", 0, ""}, {"a\nb\n", 9, "a\nb\n"},
		{"a\n\n\n", 2, "\n\n"}, {"first\n" + long + long, 2, long + long}, {long + "last\n", 1, "last\n"},
	} {
		at, err := tailOffset(strings.NewReader(tc.text), int64(len(tc.text)), tc.n)
		assert.NilError(t, err)
		assert.Check(t, tc.text[at:] == tc.want, "tail %d of %d bytes", tc.n, len(tc.text))
	}
}

// outputBuffer is a writer that signals each write.
type outputBuffer struct {
	mu   sync.Mutex
	text strings.Builder
	more chan struct{}
}

func (f *outputBuffer) Write(b []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.text.Write(b)
	select {
	case f.more <- struct{}{}:
	default:
	}
	return len(b), nil
}

func (f *outputBuffer) await(t *testing.T, want string) {
	t.Helper()
	f.awaitFunc(t, want, func(got string) bool { return got == want })
}

func (f *outputBuffer) awaitFunc(t *testing.T, want string, is func(got string) bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		f.mu.Lock()
		got := f.text.String()
		f.mu.Unlock()
		if is(got) {
			return
		}
		select {
		case <-f.more:
		case <-deadline:
			t.Fatalf("got %q, want %q", got, want)
		}
	}
}

func TestFollowAcrossRotation(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "kubelet.log")
	write := func(s string) {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		assert.NilError(t, err)
		_, err = f.WriteString(s)
		assert.NilError(t, errors.Join(err, f.Close()))
	}
	write("one\n")
	f, err := os.Open(path)
	assert.NilError(t, err)
	out := &outputBuffer{more: make(chan struct{}, 1)}
	l := &logReader{f: f, path: path, out: out}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- l.follow(ctx) }()
	want := "one\n"
	out.await(t, want)
	for i := range 3 {
		write("before\n")
		assert.NilError(t, os.Rename(path, fmt.Sprintf("%s.%d", path, i)))
		write("after\n")
		want += "before\nafter\n"
		out.await(t, want)
	}
	assert.NilError(t, os.Truncate(path, 0))
	write("x\n")
	out.await(t, want+"x\n")
	cancel()
	assert.NilError(t, <-ended)
	l.close()
}

func TestLogs(t *testing.T) {
	t.Parallel()
	c := newCLI(t)
	assert.Equal(t, c.run("logs"), errdefs.ExitOther)
	assert.Check(t, is.Contains(c.err.String(), "was never started"))
	assert.NilError(t, os.MkdirAll(c.node.Data().LogDir(), 0o700))
	assert.NilError(t, os.WriteFile(c.node.Data().Log("kubelet"), []byte("a\nb\nc\n"), 0o600))
	assert.NilError(t, os.WriteFile(c.node.Data().Log("node"), []byte("n\n"), 0o600))
	assert.Equal(t, c.run("logs", "kubelet", "--tail", "2"), 0)
	assert.Equal(t, c.run("logs"), 0)
	assert.Equal(t, c.out.String(), "b\nc\nn\n")
	c.err.Reset()
	assert.Equal(t, c.run("logs", "etcd"), errdefs.ExitConfig)
	assert.Equal(t, c.err.String(), "error: log of \"etcd\" not found\nhint: available logs: kubelet node\n")
	assert.Equal(t, c.run("logs", "../../etc/passwd"), errdefs.ExitConfig)
}

func TestImageRows(t *testing.T) {
	t.Parallel()
	list := imageRows(nil)
	assert.Assert(t, list != nil && len(list) == 0, "JSON shows a list")
	for size, want := range map[uint64]string{0: "0.0 B", 1023: "1023.0 B", 1024: "1.0 KiB", 3 << 29: "1.5 GiB", 1 << 43: "8192.0 GiB"} {
		assert.Equal(t, imageSize(size), want)
	}
}
