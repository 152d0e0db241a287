package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// Intervals between progress lines while no target ends: on a terminal for the
// line at the bottom, elsewhere for a new line.
const (
	liveEvery  = 250 * time.Millisecond
	plainEvery = time.Minute
	liveWidth  = 79
)

// progress shows the targets that are being built and the progress of the build.
type progress struct {
	w    io.Writer
	live bool
	now  func() time.Time

	mu      sync.Mutex
	begun   time.Time
	total   int
	ended   int
	running []*runningTarget
	stop    chan struct{}
	stopped chan struct{}
}

type runningTarget struct {
	name     string
	since    time.Time
	packages int
}

func newProgress(file *os.File) *progress {
	info, err := file.Stat()
	terminal := err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
	return &progress{w: file, live: terminal, now: time.Now}
}

// begin shows the number of targets and starts to show the progress.
func (p *progress) begin(chosen, stale int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun, p.total = p.now(), stale
	if stale == 0 {
		p.print("all %d up to date", chosen)
		return
	}
	p.print("building %d of %d, the others are up to date", stale, chosen)
	every := plainEvery
	if p.live {
		every = liveEvery
	}
	p.stop, p.stopped = make(chan struct{}), make(chan struct{})
	go p.tick(every)
}

func (p *progress) tick(every time.Duration) {
	defer close(p.stopped)
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-ticker.C:
			p.mu.Lock()
			if p.live {
				p.draw()
			} else {
				p.print("%s", p.line())
			}
			p.mu.Unlock()
		}
	}
}

func (p *progress) start(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running = append(p.running, &runningTarget{name: name, since: p.now()})
	if !p.live {
		p.print("[%d/%d] %-24s started", p.ended, p.total, name)
	}
}

func (p *progress) compiled(name string, packages int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.running {
		if r.name == name {
			r.packages = packages
		}
	}
}

func (p *progress) done(name string, took time.Duration, size int64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, r := range p.running {
		if r.name == name {
			p.running = append(p.running[:i:i], p.running[i+1:]...)
			break
		}
	}
	if err != nil {
		p.print("[%d/%d] %-24s not built, after %s", p.ended, p.total, name, short(took))
		return
	}
	p.ended++
	p.print("[%d/%d] %-24s %7s %9s", p.ended, p.total, name, short(took), megabytes(size))
}

// end prints the duration of a successful build.
func (p *progress) end(ok bool) {
	if p.stop != nil {
		close(p.stop)
		<-p.stopped
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if ok && p.total > 0 {
		p.print("built %d in %s", p.ended, short(p.now().Sub(p.begun)))
	} else if p.live {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

func (p *progress) tell(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.print("%s", text)
}

// print writes a line above the progress line.
func (p *progress) print(format string, args ...any) {
	if p.live {
		format = "\r\x1b[K" + format
	}
	fmt.Fprintf(p.w, format+"\n", args...)
}

func (p *progress) draw() {
	line := p.line()
	if len(line) > liveWidth {
		line = line[:liveWidth]
	}
	fmt.Fprintf(p.w, "\r\x1b[K%s", line)
}

func (p *progress) line() string {
	now := p.now()
	parts := []string{fmt.Sprintf("[%d/%d] %s", p.ended, p.total, short(now.Sub(p.begun)))}
	for _, r := range p.running {
		part := r.name + " " + short(now.Sub(r.since))
		if r.packages > 0 {
			part += fmt.Sprintf(" (%d packages)", r.packages)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, "  ")
}

func short(d time.Duration) string {
	if d < time.Minute {
		return fmt.Sprintf("%.1fs", d.Seconds())
	}
	d = d.Round(time.Second)
	return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
}

func megabytes(size int64) string { return fmt.Sprintf("%.1f MB", float64(size)/1e6) }
