package supervisor

import (
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// pumpBytes is the size of one read from a process.
const pumpBytes = 16 << 10

// output receives what the processes of a unit write. It keeps a log file of limited size, and the last lines in memory. It
// outlives each process.
type output struct {
	max   int64
	log   logrus.FieldLogger
	pumps sync.WaitGroup

	// mu and fileMu are separate, so that a hanging disk does not block readers of the last lines.
	mu      sync.Mutex
	path    string
	keep    int // lines that last returns
	tail    tail
	readers map[*os.File]struct{}

	fileMu sync.Mutex
	file   *os.File // nil: no log file
	name   string   // path of file
	size   int64
	// retryAt is the time of the next attempt after writing failed; zero if it works. lost counts the bytes that were not logged
	// meanwhile.
	retryAt time.Time
	lost    int
}

// logRetry is the delay before the log file is written again after a failure, such as a full disk.
const logRetry = 5 * time.Second

func newOutput(lines int, max int64, log logrus.FieldLogger) *output {
	return &output{max: max, log: log, keep: lines, tail: newTail(recentFactor * lines), readers: make(map[*os.File]struct{})}
}

// recentFactor is the number of lines that recent returns, as a multiple of those that last returns. The cause of an error
// often precedes a stack trace.
const recentFactor = 3

func (o *output) logPath() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.path
}

// last returns the last lines, oldest first.
func (o *output) last() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := o.tail.lines()
	return all[max(len(all)-o.keep, 0):]
}

// recent returns the last lines of the last process, oldest first, more of them than last, after those with which a crash of
// the Go runtime began.
func (o *output) recent() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	all := o.tail.lines()
	return slices.Concat(o.tail.crash, all[max(len(all)-o.tail.fresh, 0):])
}

// open switches to the log file at path, for a process that is about to start.
func (o *output) open(path string) error {
	o.mu.Lock()
	o.path, o.tail.fresh, o.tail.crash = path, 0, nil
	o.mu.Unlock()

	o.fileMu.Lock()
	defer o.fileMu.Unlock()
	o.closeFile()
	o.name, o.retryAt, o.lost = path, time.Time{}, 0
	if path == "" {
		return nil
	}
	if err := o.openFile(); err != nil {
		return err
	}
	if o.size >= o.max {
		return o.rotate()
	}
	return nil
}

func (o *output) openFile() error {
	file, err := os.OpenFile(o.name, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open log: %w", err)
	}
	info, err := file.Stat()
	if err != nil {
		file.Close()
		return fmt.Errorf("open log: %w", err)
	}
	o.file, o.size = file, info.Size()
	return nil
}

func (o *output) closeFile() {
	if o.file != nil {
		o.file.Close()
		o.file = nil
	}
}

// rotate renames the log file to path.1, replacing an older one, and opens a new file.
func (o *output) rotate() error {
	o.closeFile()
	if err := os.Rename(o.name, o.name+".1"); err != nil {
		return fmt.Errorf("rotate log: %w", err)
	}
	return o.openFile()
}

// Write stores output of a process. It never fails, so that a full disk does not affect the process.
func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	o.tail.add(b)
	o.mu.Unlock()

	o.fileMu.Lock()
	defer o.fileMu.Unlock()
	if o.name == "" || time.Now().Before(o.retryAt) {
		o.lost += len(b)
		return len(b), nil
	}
	if err := o.writeFile(b); err != nil {
		if o.retryAt.IsZero() {
			o.log.WithError(err).Warn("cannot write the log file; retrying until it can be written")
		}
		o.retryAt = time.Now().Add(logRetry)
		o.lost += len(b)
	}
	return len(b), nil
}

func (o *output) writeFile(b []byte) error {
	if !o.retryAt.IsZero() {
		if err := o.recover(); err != nil {
			return err
		}
	}
	if o.size >= o.max {
		if err := o.rotate(); err != nil {
			return err
		}
	}
	n, err := o.file.Write(b)
	o.size += int64(n)
	return err
}

// recover opens the log file again after a failure, and writes how much is missing in it.
func (o *output) recover() error {
	o.closeFile()
	if err := o.openFile(); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(o.file, "\n[%d bytes of output were not logged: the log file could not be written]\n", o.lost); err != nil {
		return err
	}
	o.log.Info("the log file can be written again")
	o.retryAt, o.lost = time.Time{}, 0
	return nil
}

// pump copies from r until end of file or until close, then closes r and done.
func (o *output) pump(r *os.File, done chan<- struct{}) {
	o.mu.Lock()
	o.readers[r] = struct{}{}
	o.mu.Unlock()
	o.pumps.Go(func() {
		defer close(done)
		defer func() {
			o.mu.Lock()
			delete(o.readers, r)
			o.mu.Unlock()
			r.Close()
		}()
		buf := make([]byte, pumpBytes)
		for {
			n, err := r.Read(buf)
			if n > 0 {
				_, _ = o.Write(buf[:n])
			}
			if err != nil {
				return
			}
		}
	})
}

// close ends the pumps whose pipes are still open in kept children, waits for all pumps, and closes the file.
func (o *output) close() {
	o.mu.Lock()
	for r := range o.readers {
		_ = r.SetReadDeadline(time.Unix(1, 0)) // fails only for a closed pipe
	}
	o.mu.Unlock()
	o.pumps.Wait()
	o.fileMu.Lock()
	defer o.fileMu.Unlock()
	o.closeFile()
}
