package suite

import (
	"bytes"
	"fmt"
	"io"
	"regexp"
	"sync"
	"time"
)

// progressEvery is the interval of progress messages.
const progressEvery = 30 * time.Second

// ginkgo's output: a dot for each spec that ran, a line for each failure, and at the end a list of failures.
var (
	dot     = []byte("•")
	bad     = regexp.MustCompile(`^• \[(FAILED|PANICKED|TIMEDOUT|INTERRUPTED|ABORTED)\]`)
	failure = regexp.MustCompile(`^\s*\[(FAIL|PANICKED|TIMEDOUT|INTERRUPTED)[^\]]*\] `)
	willRun = regexp.MustCompile(`^Will run (\d+) of \d+ specs`)
	newline = []byte("\n")
	maxLine = 1 << 20
)

// meter parses a suite's output, and prints failures and progress.
type meter struct {
	name  string
	to    io.Writer
	start time.Time

	mu          sync.Mutex
	line        []byte // incomplete
	ran, failed int
	total       string
}

func newMeter(name string, to io.Writer) *meter {
	return &meter{name: name, to: to, start: time.Now(), total: "?"}
}

// Write never fails, because the log has the complete output.
func (m *meter) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.line = append(m.line, p...)
	for {
		line, rest, ended := bytes.Cut(m.line, newline)
		if !ended {
			break
		}
		m.read(line)
		m.line = rest
	}
	return len(p), nil
}

func (m *meter) read(line []byte) {
	m.ran += bytes.Count(line, dot)
	switch found := willRun.FindSubmatch(line); {
	case found != nil:
		m.total = string(found[1])
	case bad.Match(line):
		m.failed++
	case failure.Match(line):
		fmt.Fprintf(m.to, "%s: %s\n", m.name, bytes.TrimSpace(line))
	}
}

func (m *meter) say() {
	m.mu.Lock()
	defer m.mu.Unlock()
	ran := m.ran + bytes.Count(m.line, dot)
	fmt.Fprintf(m.to, "%s: %d of %s specs ran, %d failed, after %s\n", m.name, ran, m.total, m.failed,
		time.Since(m.start).Round(time.Second))
}

// tick starts the progress messages. stop stops them after a last message.
func (m *meter) tick() (stop func()) {
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		ticker := time.NewTicker(progressEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				m.say()
			case <-done:
				m.say()
				return
			}
		}
	}()
	return func() {
		close(done)
		<-ended
	}
}
